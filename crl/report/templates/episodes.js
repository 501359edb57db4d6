"use strict";
// The browser of episodes. What models and environments wrote reaches the page through textContent only.
(() => {
  const source = document.getElementById("replays");
  if (!source) return;
  const { episodes, texts } = JSON.parse(source.textContent);
  const at = (id) => document.getElementById(id);
  const text = (place) => (place === null || place === undefined ? "" : texts[place]);
  const words = (name) => String(name).replaceAll("_", " ");
  const known = (value) => value !== null && value !== undefined;
  const signed = (value, digits) => (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(value).toFixed(digits);
  const filters = ["by-round", "by-family", "by-guide", "by-outcome", "by-text"].map(at);
  const PAUSE = 900; // milliseconds per turn while playing
  let shown = [], episode = null, turn = 0, timer = null;

  function element(tag, content, className) {
    const made = document.createElement(tag);
    if (known(content)) made.textContent = content;
    if (className) made.className = className;
    return made;
  }

  function facts(pairs) {
    const list = element("dl", null, "facts");
    for (const [name, value] of pairs) {
      const pair = element("div");
      pair.append(element("dt", name), element("dd", value));
      list.append(pair);
    }
    return list;
  }

  // -- the list ------------------------------------------------------------------------------------------------------

  function everything(each) {
    const said = [each.id, each.family, text(each.goal), each.stop_reason, text(each.last)];
    if (each.guide) said.push(each.guide.entry, text(each.guide.text));
    for (const question of each.questions) said.push(question.entry, question.reason);
    for (const [saw, wrote, did, , answer] of each.turns) said.push(text(saw), text(wrote), text(did), text(answer));
    for (const output of each.outputs) {
      said.push(output.verdict, output.reason, text(output.text));
      for (const operation of output.operations) said.push(operation.entry_id, text(operation.text));
    }
    return said.join("\n").toLowerCase();
  }

  function matches(each) {
    const [round, family, guide, outcome, wanted] = filters.map((filter) => filter.value);
    if (round && String(each.round) !== round) return false;
    if (family && each.family !== family) return false;
    if (guide && guide !== (each.guided ? "guided" : "free")) return false;
    if (outcome && outcome !== (each.success ? "won" : "lost")) return false;
    if (!wanted.trim()) return true;
    each.searched ??= everything(each);
    return each.searched.includes(wanted.trim().toLowerCase());
  }

  function mark(each) {
    return element("span", each.success ? "won" : "lost", each.success ? "mark won" : "mark lost");
  }

  function list() {
    shown = episodes.filter(matches);
    at("found").textContent = `${shown.length} of ${episodes.length} episodes`;
    at("list").replaceChildren(...shown.map((each) => {
      const row = element("li"), button = element("button");
      button.type = "button";
      button.dataset.episode = each.id;
      button.append(mark(each), element("b", `round ${each.round}`),
        element("span", `${each.family}, group ${each.group}, ${each.guided ? "guided" : "free"}, ${turns(each)}`));
      button.addEventListener("click", () => open(each));
      row.append(button);
      return row;
    }));
    point();
  }

  function turns(each) {
    return each.turns.length === 1 ? "1 turn" : `${each.turns.length} turns`;
  }

  function point() {
    for (const button of at("list").querySelectorAll("button")) {
      if (episode && button.dataset.episode === episode.id) {
        button.setAttribute("aria-current", "true");
        const box = at("list"), row = button.parentElement;
        const top = row.offsetTop; // the list is positioned, so this counts from its top
        if (top < box.scrollTop || top + row.offsetHeight > box.scrollTop + box.clientHeight) box.scrollTop = top;
      } else button.removeAttribute("aria-current");
    }
  }

  // -- one episode ---------------------------------------------------------------------------------------------------

  function open(each) {
    stop();
    episode = each;
    at("title").textContent = each.id;
    const told = [each.guided ? "guided" : "free", `seed ${each.environment_seed}`, `reward ${each.reward}`,
      `${turns(each)}, ${each.invalid_actions} invalid`, `ended by ${words(each.stop_reason)}`];
    if (known(each.error)) told.push(words(each.error));
    at("badges").replaceChildren(mark(each), element("span", told.join(" · ")));
    at("goal").textContent = text(each.goal);
    at("trail").replaceChildren(...each.turns.map(([, , did, valid], index) => {
      const shown = asked(each, index) ? "?" : text(did);
      const row = element("li"), button = element("button", valid ? shown : "✗", valid ? "" : "invalid");
      button.type = "button";
      const told = asked(each, index) ? `a question${valid ? "" : " without an answer"}` : valid ? shown : "no legal action";
      button.setAttribute("aria-label", `turn ${index + 1}: ${told}`);
      button.addEventListener("click", () => { stop(); go(index); });
      row.append(button);
      return row;
    }));
    at("slider").max = Math.max(1, each.turns.length);
    at("guide").replaceChildren(...guide(each.guide));
    at("distilled").replaceChildren(...distilled(each.outputs));
    at("sequences").hidden = each.sequences.length < 2;
    at("sequences").querySelector("ol").replaceChildren(...each.sequences.map(sequence));
    go(0);
    point();
  }

  function guide(found) {
    if (!found) return [element("p", "None: a free episode.", "faint")];
    const pairs = [["entry", found.entry]];
    if (known(found.similarity)) {
      pairs.push(["similarity", found.similarity.toFixed(3)], ["score (eq. 6)", found.score.toFixed(3)],
        ["rank", `${found.rank + 1} of ${found.candidates}`], ["retrieved before", `${found.count}×`],
        ["bank of round", found.bank_round]);
    }
    if (known(found.outcome)) pairs.push(["credit", signed(found.outcome, 0)]);
    if (known(found.free_mean)) pairs.push(["unguided rollouts of the same group", signed(found.free_mean, 2)]);
    if (known(found.guided_minus_free)) pairs.push(["difference", signed(found.guided_minus_free, 2)]);
    const search = element("button", "Episodes with this entry", "link");
    search.type = "button";
    search.addEventListener("click", () => seek(found.entry.split(", ")[0]));  // of several, the first
    return [element("blockquote", text(found.text), "text"), facts(pairs), search];
  }

  function distilled(outputs) {
    if (!outputs.length) return [element("p", "Nothing: it was not given to the extractor.", "faint")];
    return outputs.flatMap((output) => {
      const verdict = element("p");
      verdict.append(element("b", output.verdict));
      if (output.reason !== "ok") verdict.append(` (${words(output.reason)})`);
      const parts = [verdict];
      for (const operation of output.operations) {
        const box = element("div", null, `change ${operation.became === "rejected" ? "rejected" : "added"}`);
        box.append(element("b", operation.kind));
        if (known(operation.entry_id)) box.append(" ", element("span", operation.entry_id, "id"));
        if (known(operation.text)) box.append(element("div", text(operation.text), "text"));
        box.append(element("div", became(operation), operation.became === "rejected" ? "why" : "note"));
        parts.push(box);
      }
      if (known(output.text)) {
        const raw = element("details"), pre = element("pre", text(output.text), "wrap");
        raw.open = !output.operations.length;
        raw.append(element("summary", "What the extractor wrote"), pre);
        parts.push(raw);
      }
      return parts;
    });
  }

  function sequence({ id, tokens, trained, turns, dropped_turns, dropped_tokens }) {
    const row = element("li"), numbers = turns.map((turn) => turn + 1).join(", ");
    row.append(element("span", id, "id"), element("div", `${turns.length ? `turns ${numbers}` : "no turn"}`
      + (known(tokens) ? ` · ${tokens} tokens, ${trained} of them trained` : "")
      + (dropped_tokens ? ` · without ${dropped_turns ? `turns 1–${dropped_turns}, ` : ""}${dropped_tokens} tokens` : ""),
    "note"));
    return row;
  }

  function became(operation) {
    if (!known(operation.became)) return "not consolidated yet";
    if (operation.became === "rejected") return `rejected: ${words(operation.reason ?? "no reason given")}`;
    return ["return", "keep"].includes(operation.became) ? "changes nothing" : "applied to the bank";
  }

  // -- one turn ------------------------------------------------------------------------------------------------------

  function go(index) {
    const last = episode.turns.length - 1;
    turn = Math.min(Math.max(index, 0), Math.max(last, 0));
    const [saw, wrote, did, valid, answer] = episode.turns[turn] ?? [null, null, null, false, null];
    const place = episode.sequences.findIndex((each) => each.turns.includes(turn));
    at("turn").textContent = last < 0 ? "no turn" : `Turn ${turn + 1} of ${last + 1}`
      + (episode.sequences.length > 1 ? `, sequence ${place + 1}` : "");
    at("slider").value = turn + 1;
    at("slider").setAttribute("aria-valuetext", at("turn").textContent);
    at("observation").textContent = text(saw);
    at("observation").classList.toggle("prose", !text(saw).includes("\n"));  // a map keeps its lines
    at("output").textContent = text(wrote);
    const question = asked(episode, turn);
    at("action").replaceChildren(...(question ? inquiry(question, valid) : valid ? ["Action: ", element("b", text(did))]
      : [element("b", last < 0 ? "" : "No legal action", "not")]));
    at("feedback").textContent = question && valid ? `Answer: ${text(answer)}` : text(answer);
    at("feedback").className = question && valid ? "text" : "why";
    at("feedback").hidden = !known(answer);
    at("result").replaceChildren(...(turn < last ? []
      : [mark(episode), ` reward ${episode.reward}, ended by ${words(episode.stop_reason)}`]));
    at("ending").hidden = turn < last || !known(episode.last);
    at("last").textContent = text(episode.last);
    at("previous").setAttribute("aria-disabled", turn <= 0);
    at("next").setAttribute("aria-disabled", turn >= last);
    at("trail").querySelectorAll("button").forEach((button, place) => {
      if (place === turn) button.setAttribute("aria-current", "step");
      else button.removeAttribute("aria-current");
    });
  }

  function asked(each, index) {
    return each.questions.find((question) => question.turn === index);
  }

  function inquiry(question, answered) {
    const parts = ["Question: ", element("b", text(question.question))];
    if (!answered) parts.push(" ", element("span", words(question.reason), "not"));
    if (known(question.entry)) {
      const search = element("button", question.entry, "link");
      search.type = "button";
      search.addEventListener("click", () => seek(question.entry));
      parts.push(" · nearest entry ", search, `, similarity ${question.similarity.toFixed(3)}`);
    }
    return parts;
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    at("play").textContent = "Play";
  }

  function play() {
    if (timer !== null) return stop();
    if (turn >= episode.turns.length - 1) go(0);
    at("play").textContent = "Pause";
    timer = setInterval(() => {
      go(turn + 1);
      if (turn >= episode.turns.length - 1) stop();
    }, PAUSE);
  }

  // -- keys, filters, addresses --------------------------------------------------------------------------------------

  function seek(wanted) {
    for (const filter of filters) filter.value = "";
    at("by-text").value = wanted;
    list();
    if (shown.length) open(shown[0]);
    at("episodes").scrollIntoView();
  }

  function visit() {
    const [, key, value] = location.hash.match(/^#(uses|episode)=(.+)$/) ?? [];
    if (!key) return;
    let name = value;
    try { name = decodeURIComponent(value); } catch { /* not an address of ours: taken as it is */ }
    if (key === "uses") seek(name);
    const wanted = key === "episode" && episodes.find((each) => each.id === name);
    if (wanted) {
      open(wanted);
      at("episodes").scrollIntoView();
    }
  }

  const steps = { ArrowLeft: () => turn - 1, ArrowRight: () => turn + 1, Home: () => 0, End: () => Infinity };
  at("replay").addEventListener("keydown", (event) => {
    if (event.target.matches("input, .screen") && event.target.scrollWidth > event.target.clientWidth) return;
    if (event.target.matches("input") || event.altKey || event.ctrlKey || event.metaKey || !steps[event.key]) return;
    event.preventDefault();
    stop();
    go(steps[event.key]());
  });
  at("list").addEventListener("keydown", (event) => {
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const row = event.target.closest("li");
    const goal = move === 1 ? row?.nextElementSibling : move === -1 ? row?.previousElementSibling : null;
    if (!move) {
      if (steps[event.key] && episode) { event.preventDefault(); stop(); go(steps[event.key]()); }
      return;
    }
    event.preventDefault();
    if (!goal) return;
    const button = goal.querySelector("button");
    button.focus();
    button.click();
  });
  at("previous").addEventListener("click", () => { stop(); go(turn - 1); });
  at("next").addEventListener("click", () => { stop(); go(turn + 1); });
  at("play").addEventListener("click", play);
  at("slider").addEventListener("input", () => { stop(); go(at("slider").valueAsNumber - 1); });
  for (const filter of filters) filter.addEventListener("input", list);
  at("clear").addEventListener("click", () => { for (const filter of filters) filter.value = ""; list(); });
  addEventListener("hashchange", visit);

  for (const [id, values] of [["by-round", episodes.map((each) => each.round)], ["by-family", episodes.map((each) => each.family)]]) {
    for (const value of new Set(values)) at(id).append(new Option(value, value));
  }
  at("browser").hidden = false;
  list();
  // A game to begin with that shows most: guided, won, of several turns.
  const shows = (each) => 4 * each.guided + 2 * each.success + (each.turns.length > 2);
  open(episodes.reduce((best, each) => (shows(each) > shows(best) ? each : best)));
  visit();
})();
