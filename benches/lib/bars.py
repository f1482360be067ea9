"""Rows that several peers run in turn, and the bars that one of them has to reach."""

import json
import math
import os
import statistics
from dataclasses import dataclass

import network


@dataclass
class Bar:
    """What `own` has to reach: at least or at most `limit`, as it is or as a ratio to another peer or row."""

    figure: str
    limit: float
    is_least: bool = True
    peer: str = ""
    row: str = ""
    own: str = "neap"

    def text(self):
        other = f" of {self.peer}" if self.peer else f" of {self.row}" if self.row else ""
        own = "" if self.own == "neap" else f"{self.own}: "
        return f"{own}{self.figure}{other} {'>=' if self.is_least else '<='} {self.limit:g}"

    def is_met(self, value):
        return value >= self.limit if self.is_least else value <= self.limit


def at_least(figure, limit, peer="", row="", own="neap"):
    return Bar(figure, limit, True, peer, row, own)


def at_most(figure, limit, peer="", own="neap"):
    return Bar(figure, limit, False, peer, "", own)


def chosen(table, names):
    """The rows that are named, in full or by their beginning; all if none is named."""
    full = {row.name for row in table}

    def is_named(row):
        return any(row.name == name or name not in full and row.name.startswith(name) for name in names)

    found = [row for row in table if not names or is_named(row)]
    if not found:
        raise network.Failure(f"there is no row {' '.join(names)}: see --list")
    return found


def has(result, figure):
    """Whether a round has the figure. One that is not a number could not be measured."""
    return not math.isnan(result.get(figure, math.nan))


def medians(results, formats):
    """Of each figure over the rounds that have it."""
    values = {figure: [result[figure] for result in results if has(result, figure)] for figure in formats}
    return {figure: statistics.median(found) for figure, found in values.items() if found}


def shown(figures, formats):
    return "  ".join(f"{formats[name][0]} {format(value, formats[name][1])}" for name, value in figures.items())


def run_all(rows, rounds, peers_of, measure, lines, formats):
    """Each row with all of its peers in turn, in rotating order. `formats` are title and format of each figure that is shown;
    `lines` gets all figures as JSON. Answers the figures of each round by row and peer; a round that failed has none."""
    results = {}
    for number in range(rounds):
        for index, row in enumerate(rows):
            peers = peers_of(row)
            turn = (number + index) % len(peers)
            for peer in peers[turn:] + peers[:turn]:
                load = os.getloadavg()[0] / os.cpu_count()
                try:
                    found = figures = measure(row, peer, number)
                except network.Failure as failure:
                    found, figures = {}, {"failure": str(failure)}
                    print(f"{row.name:<16}{peer:<18} {failure}", flush=True)
                results.setdefault((row.name, peer), {})[number] = found
                print(json.dumps({"row": row.name, "peer": peer, "round": number, "load": load} | figures), file=lines, flush=True)
            if number == rounds - 1:
                for peer in peers:
                    if figures := medians(list(results[row.name, peer].values()), formats):
                        print(f"{row.name:<16}{peer:<18} {shown(figures, formats)}", flush=True)
    return results


def value_of(bar, row, results):
    """The figure that a bar is about; None if it was not measured. Ratios are medians of those of each round."""
    own = results.get((row.name, bar.own), {})
    if bar.peer or bar.row:
        other = results.get((bar.row or row.name, bar.peer or bar.own), {})
        both = [(own[n][bar.figure], other[n][bar.figure]) for n in own if has(own[n], bar.figure) and has(other.get(n, {}), bar.figure)]
        ratios = [mine / theirs for mine, theirs in both if theirs > 0]
        return statistics.median(ratios) if ratios else None
    values = [result[bar.figure] for result in own.values() if has(result, bar.figure)]
    return statistics.median(values) if values else None


def rounds_without(bar, row, results):
    """In how many rounds the peer of the bar was run without the figure, in a row that the bar is about."""
    rows = {row.name} if bar.peer else {row.name, bar.row or row.name}
    return sum(not has(result, bar.figure) for name in rows for result in results.get((name, bar.own), {}).values())


def judge(rows, results):
    """Prints each bar, and answers how many were missed: a round that failed misses its bars, whatever the others reached. What was
    not run, or has no other peer to be compared with, counts as nothing."""
    missed = 0
    width = max((len(bar.text()) for row in rows for bar in row.bars), default=0) + 2
    print(f"\n{'row':<18}{'bar':<{width}}{'reached':>10}")
    for row in rows:
        for bar in row.bars:
            value, without = value_of(bar, row, results), rounds_without(bar, row, results)
            if without:
                verdict = f"MISSED: {without} {'round' if without == 1 else 'rounds'} without it"
            elif value is None:
                verdict = "not measured"
            else:
                verdict = "met" if bar.is_met(value) else "MISSED"
            missed += verdict.startswith("MISSED")
            print(f"{row.name:<18}{bar.text():<{width}}{'-' if value is None else f'{value:.2f}':>10}  {verdict}")
    return missed
