"""The idioms that are not proved, by the kinds that `docs/prove/index.md` lists."""

PLAIN = {
    "data.contrast_of_pairs_with_gathered_features",
    "experts.soft_mixture_with_a_split_router",
    "experts.tables_of_features_on_different_devices",
    "meshes.fourier_transform_of_a_split_plane",
    "meshes.rows_between_bounds_over_two_axes",
    "pipeline.a_batch_that_goes_round_twice",
    "pipeline.gpipe_forward",
    "pipeline.interleaved_stages",
    "pipeline.stages_beside_data",
    "sequence.attention_within_packed_documents",
    "sequence.one_query_over_a_split_cache",
    "sequence.online_softmax_over_blocks_of_keys",
    "statistics.largest_smallest_and_norm",
    "vocabulary.cross_entropy_against_log_softmax_of_one_hot",
    "vocabulary.cross_entropy_against_logsumexp",
    "vocabulary.cross_entropy_without_a_maximum",
    "vocabulary.embedding_by_a_product_with_one_hot",
}
"""Proved against themselves on one device, and unknown against the plain reference."""

UNKNOWN = {
    "A global `argmax`, `top_k` or sample over a split dimension.": {
        "vocabulary.argmax_as_the_smallest_place_of_the_maximum",
        "vocabulary.argmax_of_gathered_candidates",
        "vocabulary.sample_by_gumbel_noise",
        "vocabulary.top_k_of_gathered_candidates",
    },
    "A running sum over a split dimension": {
        "sequence.cumsum_with_a_gathered_prefix",
        "sequence.cumsum_with_totals_sent_along",
    },
    "Lookups by quotient and remainder": {
        "vocabulary.embedding_by_quotient_and_remainder",
        "vocabulary.embedding_that_fills_rows_of_others_with_zeros",
        "experts.tokens_scattered_into_the_slots_of_a_device",
        "meshes.embedding_of_rows_over_two_axes",
    },
    "Comparisons of a maximum over devices": {
        "vocabulary.tokens_whose_label_scores_highest",
    },
    "Windows and shifts that cross the parts of a split dimension.": {
        "images.convolution_with_halo",
        "images.depthwise_convolution_with_halo",
        "images.gradient_of_a_convolution_with_halo",
        "images.separable_convolution_with_halo",
        "meshes.stencil_on_a_grid_of_blocks",
        "sequence.next_token_loss_across_devices",
        "sequence.sequence_reversed",
        "sequence.sliding_window_with_a_halo_of_keys",
    },
    "Gradients of rings, and of unrolled pipelines over microbatches.": {
        "pipeline.gpipe_gradient",
        "sequence.gradients_of_ring_attention",
    },
    "Statistics that are combined from those of the devices": {
        "optimizer.clipping_by_the_norm_of_split_gradients",
        "statistics.variance_combined_from_local_ones",
        "vocabulary.logsumexp_of_gathered_logsumexps",
    },
    "A mask of the device's own expert": {
        "experts.every_token_through_the_experts_of_a_device",
    },
    "Blocks that are sent by a masked `psum`": {
        "meshes.product_of_blocks_step_by_step",
    },
}
"""Unknown against themselves too."""


def expected(name: str) -> str:
    """Return the status that an idiom has."""
    if name in PLAIN:
        return "proved against itself"
    return "unknown" if any(name in names for names in UNKNOWN.values()) else "proved"
