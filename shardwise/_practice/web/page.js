(function () {
  "use strict";
  var state = null, open = null, drawn = null;

  get("menu").addEventListener("click", function () {
    var shown = get("list").classList.toggle("open");
    get("menu").setAttribute("aria-expanded", String(shown));
  });

  var ask = function (path, post) {
    var options = post ? { method: "POST", headers: { "X-Practice": "yes" } } : {};
    return fetch(path, options).then(function (answer) {
      if (!answer.ok) throw new Error(String(answer.status));
      return answer.json();
    });
  };

  var list = function () {
    var box = get("list"), topic = null;
    box.textContent = "";
    state.exercises.forEach(function (one) {
      if (one.topic !== topic) {
        topic = one.topic;
        box.appendChild(make("h3", topic));
      }
      var row = make("button");
      var wrong = one.status === "wrong" || one.status === "could not run";
      row.appendChild(make("span", one.solved ? "✓" : wrong ? "✗" : "·", "mark" + (one.solved ? " right" : wrong ? " wrong" : "")));
      row.appendChild(make("span", one.title));
      row.type = "button";
      row.setAttribute("aria-current", String(open === one.name));
      row.addEventListener("click", function () { choose(one.name); });
      box.appendChild(row);
    });
    var done = state.exercises.filter(function (one) { return one.solved; }).length;
    get("count").textContent = done + " of " + state.exercises.length + " done";
    get("progress").firstElementChild.style.width = 100 * done / state.exercises.length + "%";
    get("progress").setAttribute("aria-label", get("count").textContent);
  };

  var statement = function (one) {
    var box = get("statement");
    box.textContent = "";
    box.appendChild(make("p", one.number + ". " + one.topic, "topic"));
    box.appendChild(make("h2", one.title));
    var text = make("div");
    // Made from Markdown by the server, which escapes everything that it does not write itself.
    text.innerHTML = one.statement;
    box.appendChild(text);
    if (one.hints.length) box.appendChild(make("p", one.about_hints, "sw-muted"));
    one.hints.forEach(function (hint) {
      var made = make("div", null, "hint");
      made.innerHTML = hint;
      box.appendChild(made);
    });
    var tools = make("div", null, "tools");
    var more = make("button", one.hints.length ? "Another hint" : "A hint");
    more.type = "button";
    more.disabled = !one.more_hints;
    more.addEventListener("click", hint);
    tools.appendChild(more);
    var again = make("button", "Judge again");
    again.type = "button";
    again.addEventListener("click", judge);
    tools.appendChild(again);
    box.appendChild(tools);
    if (one.solution) {
      var fold = make("details");
      fold.style.marginTop = "1.2rem";
      fold.appendChild(make("summary", "A solution"));
      fold.appendChild(make("pre", one.solution));
      box.appendChild(fold);
    }
  };

  var table = function (head, rows, kinds) {
    var made = make("table");
    if (head) {
      var top = make("tr");
      head.forEach(function (words) { top.appendChild(make("th", words)); });
      made.appendChild(top);
    }
    rows.forEach(function (row, index) {
      var line = make("tr", null, kinds ? kinds[index] : "");
      row.forEach(function (words, column) {
        line.appendChild(make("td", words, kinds && column === 1 ? "said" : ""));
      });
      made.appendChild(line);
    });
    var scroll = make("div", null, "sw-scroll");
    scroll.appendChild(made);
    return scroll;
  };

  var words = function (text) {
    var made = make("p");
    text.split(/(`[^`]+`)/).forEach(function (part) {
      made.appendChild(part[0] === "`" ? make("code", part.slice(1, -1)) : document.createTextNode(part));
    });
    return made;
  };

  var verdict = function (one) {
    var box = get("verdict"), found = one.verdict;
    box.textContent = "";
    box.className = "";
    if (one.judging) {
      var busy = make("p", "Judging " + one.file + " …", "busy");
      busy.setAttribute("role", "status");
      box.appendChild(busy);
      // The last verdict stays until there is another: the learner is still reading it.
      if (!found) return;
      box.classList.add("before");
      box.appendChild(make("p", "The last verdict:", "sw-muted"));
    }
    if (!found) {
      box.appendChild(make("h2", one.solved ? "Solved" : "Not judged yet"));
      box.appendChild(make("p", "Save " + one.file + " in your editor, and the verdict appears here.", "sw-muted"));
      if (one.solved) box.classList.add("right");
      return;
    }
    box.classList.add(found.ok ? "right" : "wrong");
    box.appendChild(make("h2", found.ok ? "Right" : found.status === "wrong" ? "Wrong" : "It could not be run"));
    if (found.table.length) {
      var wrong = found.table.some(function (run) { return !run.ok; });
      box.appendChild(table(wrong ? ["on", "", "expected", "found"] : null, found.table.map(function (run) {
        var row = [run.title, run.ok ? "right" : "wrong"];
        if (wrong) row.push(run.expected, run.found);
        return row;
      }), found.table.map(function (run) { return run.ok ? "ok" : "not"; })));
    }
    if (found.pitfall) {
      var fall = make("div", null, "pitfall");
      var head = make("h3", found.pitfall.title);
      head.appendChild(make("code", found.pitfall.name));
      fall.appendChild(head);
      fall.appendChild(words(found.pitfall.text));
      box.appendChild(fall);
    }
    if (found.line) box.appendChild(make("p", "Line " + found.line.number + ":  " + found.line.text, "sw-muted"));
    found.held.forEach(function (value) {
      var held = make("div", null, "held");
      held.appendChild(make("h3", value.value + (found.held_on ? ", on " + found.held_on : "")));
      held.appendChild(table(null, value.devices.map(function (row) { return [row.device, row.holds]; })));
      box.appendChild(held);
    });
    if (found.reason) box.appendChild(make("pre", found.reason, "said"));
    if (found.printed && !found.ok) box.appendChild(make("pre", "It printed:\n" + found.printed, "said"));
    if (found.hint && !found.ok) {
      var tip = make("div", null, "hint");
      tip.appendChild(words(found.hint));
      box.appendChild(tip);
    }
    if (found.ok) {
      var next = state.exercises.find(function (other) { return !other.solved; });
      var on = make("button", next ? "Next: " + next.title : "All exercises are done");
      on.type = "button";
      on.disabled = !next;
      on.style.marginTop = ".9rem";
      if (next) on.addEventListener("click", function () { choose(next.name); });
      box.appendChild(on);
    }
  };

  var source = function (one) {
    var box = get("source");
    var here = one.verdict && one.verdict.line ? one.verdict.line.number : 0;
    box.textContent = "";
    box.appendChild(make("h3", "Your file, as it is on disk: " + one.path));
    var code = make("pre", null, "sw-source");
    one.source.forEach(function (line) {
      var row = make("span", null, line[0] === here ? "here" : "");
      row.appendChild(make("b", line[0]));
      row.appendChild(document.createTextNode(line[1] || " "));
      code.appendChild(row);
    });
    box.appendChild(code);
  };

  var show = function (one) {
    if (one.name !== open) return;
    statement(one);
    verdict(one);
    source(one);
  };
  var refresh = function () {
    return ask("overview").then(function (found) {
      var before = state;
      if (before && found.changes < before.changes) return;  // an answer that came late
      state = found;
      get("problem").hidden = !found.problem;
      get("problem").textContent = found.problem;
      if (open === null) open = found.current;
      // A file that is saved is the one that its author wants to see.
      if (before && found.saved[0] !== before.saved[0]) turn(found.saved[1]);
      if (drawn === open + " " + found.changes) return;
      list();
      return ask("exercise/" + open).then(function (one) {
        drawn = one.name + " " + found.changes;
        show(one);
      });
    });
  };
  var turn = function (name) {
    open = name;
    history.replaceState(null, "", "#" + name);
  };
  var choose = function (name) {
    turn(name);
    get("list").classList.remove("open");
    get("menu").setAttribute("aria-expanded", "false");
    refresh().then(function () {
      window.scrollTo(0, 0);
      reveal();
    });
  };
  var reveal = function () {
    var row = document.querySelector('#list [aria-current="true"]'), box = get("list");
    if (row && box.scrollHeight > box.clientHeight) {
      box.scrollTop = row.offsetTop - box.offsetTop - box.clientHeight / 2;
    }
  };
  var hint = function () { ask("hint/" + open, true).then(show); };
  var judge = function () { ask("judge/" + open, true); };
  var move = function (step) {
    var names = state.exercises.map(function (one) { return one.name; });
    choose(names[(names.indexOf(open) + step + names.length) % names.length]);
  };
  document.addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !state) return;
    if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "h") hint();
    else if (event.key === "r") judge();
  });

  var watch = function () {
    refresh().then(function () { return true; }, function () { return false; }).then(function (there) {
      get("lost").hidden = there;
      setTimeout(watch, 500);
    });
  };
  window.addEventListener("hashchange", function () {
    var name = location.hash.slice(1);
    if (state && name !== open && state.exercises.some(function (one) { return one.name === name; })) {
      choose(name);
    }
  });
  open = location.hash.slice(1) || null;
  refresh().catch(function () {
    open = null;
    return refresh();
  }).then(function () {
    reveal();
    watch();
  });
})();
