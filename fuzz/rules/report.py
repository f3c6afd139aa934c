"""The tables of docs/rules.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuzz.rules.table import ALL_RULES, Judgement, score


def render(judgements: Sequence[Judgement]) -> str:
    """Markdown: a line for each rule, then a line for each fault."""
    return f"{_by_rule(judgements)}\n\n{_false_alarms(judgements)}\n\n{_by_fault(judgements)}\n"


def _by_rule(judgements: Sequence[Judgement]) -> str:
    heads = ["rule", "kills, its own inputs", "ours there", "kills, all suites' inputs", "kills, our strata",
             "false alarms, own", "suites'", "ours"]  # fmt: skip
    suites = [one for one in judgements if not one.inputs.ours]
    strata = [one for one in judgements if one.inputs.ours]
    rows = []
    for rule in ALL_RULES:
        own = [one for one in suites if one.inputs.name in rule.inputs]
        parts = [score(part, rule) for part in (own, suites, strata)]
        kills = [f"{part.kills} / {part.faults}" if part.faults else "-" for part in parts]
        alarms = [f"{part.alarms} / {part.correct}" if part.correct else "-" for part in parts]
        kills.insert(1, str(score(own, ALL_RULES[-1]).kills) if own else "-")
        rows.append([rule.name, *kills, *alarms])
    return _table(heads, rows)


def _false_alarms(judgements: Iterable[Judgement]) -> str:
    lines = []
    for rule in ALL_RULES:
        sets = dict.fromkeys(one.inputs.name for one in judgements if not one.faulty and rule.name in one.rejected_by)
        if sets:
            lines.append(f"- {rule.name} rejects a correct kernel on: {'; '.join(sets)}")
    return "\n".join(lines)


def _by_fault(judgements: Sequence[Judgement]) -> str:
    rows = []
    for kernel in dict.fromkeys(one.kernel for one in judgements if one.faulty):
        mine = [one for one in judgements if not one.faulty or one.kernel == kernel]
        scores = [score(mine, rule) for rule in ALL_RULES]
        rows.append([kernel, str(scores[0].faults), *(str(one.kills) for one in scores)])
    return _table(["fault", "input sets", *(rule.name for rule in ALL_RULES)], rows)


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
