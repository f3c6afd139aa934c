"""The page that a person opens in the morning: what it says, that it needs nothing else, that nothing in it is run."""

import base64
import json
import math
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fuzz.options import UsageError
from fuzz.report.again import write_again
from fuzz.report.picture import pictures
from tests.report_runs import FINDING, Written, dump_of, report


class Page(HTMLParser):
    """The tags of a page, with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def failed_run(directory, **changes) -> str:
    run = Written(directory)
    run.judge({"alive": None, "output": 0.5, "lse": 0.01})
    run.judge({"alive": None, "output": 0.7}, FINDING | changes, strata=("values:bell", "pages:reversed"), seed=9)
    return run.end(exit_status=1)


def test_a_passing_run_says_so_first_with_its_worst_ratios(tmp_path):
    run = Written(tmp_path / "run")
    for ratio in (0.25, 0.8125, 0.5):
        run.judge({"alive": None, "output": ratio, "lse": 0.03125})
    text = Page(run.end(exit_status=0)).text
    assert text.index("Passed: nothing found in 3 cases") < text.index("0.812") < text.index("Throughput")
    assert "Failures" not in text
    assert "torch2.13.0" in text.replace("\n", "")


def test_a_failure_shows_its_worst_element_its_case_and_its_replay_command(tmp_path):
    text = Page(failed_run(tmp_path / "run")).text
    assert "Failed: 1 failure in 2 cases" in text
    assert "row 1, head 5, column 200" in text
    assert "1.24 to 1.26" in text
    assert "1 request of 2 queries and 65 keys; 3 requests of 0 queries and 64 keys" in text
    assert f"python -m fuzz replay {dump_of(tmp_path / 'run', 'output')}" in text


def test_the_page_is_one_file_that_loads_nothing_and_runs_nothing(tmp_path):
    html = failed_run(tmp_path / "run")
    page = Page(html)
    assert page.open == []
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;"))
    assert "http" not in html.replace("http-equiv", "")
    assert "@import" not in html and "url(" not in html
    assert "default-src 'none'" in html


def test_links_lead_to_sections_and_headers_have_scopes(tmp_path):
    page = Page(failed_run(tmp_path / "run"))
    places = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert all(attributes["href"][1:] in places for tag, attributes in page.tags if tag == "a")
    assert all("scope" in attributes for tag, attributes in page.tags if tag == "th")
    assert all(attributes.get("aria-label") for tag, attributes in page.tags if tag == "svg")
    assert all(attributes.get("alt") for tag, attributes in page.tags if tag == "img")


def test_text_from_outside_cannot_become_markup(tmp_path):
    hostile = "</code></pre><script>alert('x')</script><img src=x onerror=alert(1)>&amp;"
    run = Written(tmp_path / "run", kernel=hostile)
    run.judge({"output": 0.1}, FINDING | {"detail": hostile, "message": hostile}, strata=(f"values:{hostile}",))
    run.judge({f"check{hostile}": 0.1}, FINDING | {"check": "alive" + hostile, "index": None, "detail": "x"})
    run.journal.write("error", usage=False, message=hostile)
    run.journal.write("device", device=hostile, versions={hostile: hostile}, strata={hostile: hostile})
    run.begin(strata=(hostile,))
    html = run.end(exit_status=1)
    page = Page(html)
    assert page.open == []
    assert not {"script"} & {tag for tag, _ in page.tags}
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert page.text.count(hostile) >= 6


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, 1e300])
def test_every_number_can_be_shown(tmp_path, bad):
    finding = FINDING | {"got": bad, "expected": bad, "allowed": [bad, bad], "ratio": bad}
    run = Written(tmp_path / "run")
    run.judge({"output": bad, "lse": bad})
    run.judge({"output": bad}, finding)
    text = Page(run.end(exit_status=1)).text
    assert "Failed" in text and "nan to" in text if math.isnan(bad) else "Failed" in text


def test_strata_that_no_case_met_are_told_from_those_that_cannot_be_drawn(tmp_path):
    run = Written(tmp_path / "run")
    run.judge({"output": 0.25}, strata=("values:bell", "pages:reversed"))
    html = run.end(exit_status=0)
    assert "2 of 3" in html
    assert [row.split("<")[0].strip() for row in html.split('<tr><th scope="row">') if "not met" in row] == ["huge"]
    drawn, _, never = html.partition("Strata that this run could not draw: 1")
    assert "needs the promise hardened" in never and "pages:broken" in never
    assert "broken" not in drawn


def test_a_failure_without_an_element_is_shown(tmp_path):
    run = Written(tmp_path / "run")
    run.judge({}, {"check": "alive", "detail": "the process that ran the kernel died"})
    text = Page(run.end(exit_status=1)).text
    assert "the process that ran the kernel died" in text
    assert "Worst element" not in text


def test_a_run_without_a_case_has_a_report_and_no_verdict(tmp_path):
    run = Written(tmp_path / "run")
    run.journal.write("error", usage=True, message="--kernel absent:run: there is no module 'absent' on the path")
    text = Page(run.end(exit_status=2, stopped="error")).text
    assert "No verdict after 0 cases" in text
    assert "no case was run" in text
    assert "there is no module 'absent'" in text


def test_unfinished_cases_and_interruptions_are_told(tmp_path):
    run = Written(tmp_path / "run")
    run.judge({"output": 0.1})
    run.begin(seed=11)
    text = Page(run.end(exit_status=2, stopped="interrupted")).text
    assert "No verdict after 1 case" in text
    assert "the run was interrupted before its end" in text
    assert "1 case unfinished when the run ended" in text


@pytest.mark.parametrize("place", ["out/earlier/20260101-000000", "other-night"])
def test_failures_are_new_known_or_fixed_beside_earlier_runs(tmp_path, place):
    def night(directory, began, *checks):
        run = Written(directory, began=began)
        for check in checks:
            run.judge({"output": 0.5}, FINDING | {"check": check})
        return run.end(exit_status=1)

    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "not-a-run" / "summary.json").write_text("{")
    night(tmp_path / place, "20260101-000000", "output", "fresh")
    night(tmp_path / "later", "20260109-000000", "repeatable")
    html = night(tmp_path / "out", "20260102-000000", "output", "lse")
    assert "1 new, 1 known from earlier runs" in html
    history = html[html.index('id="history"') :]
    for check, run, status in (("lse", "out", "new"), ("output", "out", "known"), ("fresh", place, "fixed")):
        row = history[history.index(f"<code>{dump_of(tmp_path / run, check).name}</code>") :]
        assert row[: row.index("</tr>")].count(f"chip {status}") == 1
    assert f"python -m fuzz replay {dump_of(tmp_path / place, 'fresh')}" in html
    assert "repeatable" not in html


def test_another_kernels_runs_do_not_count(tmp_path):
    other = Written(tmp_path / "other", kernel="other:run", began="20250101-000000")
    other.judge({"output": 0.5}, FINDING)
    other.end(exit_status=1)
    assert "from earlier runs" not in failed_run(tmp_path / "run")


def test_a_killed_run_gets_its_results_from_its_journals(tmp_path):
    run = Written(tmp_path / "run")
    run.judge({"output": 0.5}, FINDING)
    run.begin(seed=12)
    assert write_again(tmp_path / "run") == tmp_path / "run" / "report.html"
    text = Page(report(tmp_path / "run")).text
    assert "Failed: 1 failure in 1 case" in text
    assert "the run was killed before its end" in text
    assert (dump_of(tmp_path / "run", "output") / "case.json").exists()


def test_a_report_made_again_is_the_same(tmp_path):
    html = failed_run(tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    write_again(tmp_path / "run")
    assert report(tmp_path / "run") == html


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no run has left its journals there"):
        write_again(tmp_path)


def test_line_coverage_is_shown_where_there_is_some(tmp_path):
    run = Written(tmp_path / "run")
    run.judge({"output": 0.5})
    assert "Lines of the kernel" not in run.end(exit_status=0)
    measured = {"summary": {"num_statements": 40, "covered_lines": 36}, "missing_lines": [3, 7, 8, 9]}
    empty = {"summary": {"num_statements": 0, "covered_lines": 0}, "missing_lines": []}
    files = {"files": {"kernel/<prefill>.py": measured, "kernel/empty.py": empty}}
    (tmp_path / "run" / "coverage.json").write_text(json.dumps(files))
    write_again(tmp_path / "run")
    page = Page(report(tmp_path / "run"))
    assert "kernel/<prefill>.py3, 7-94090 %" in page.text
    assert "kernel/empty.py" not in page.text
    (tmp_path / "run" / "coverage.json").write_text('{"files": 1}')
    write_again(tmp_path / "run")
    assert "Lines of the kernel" not in report(tmp_path / "run")


def dump(directory, result, golden, observed, allowed) -> None:
    """Tensors of a dump in which `result` may be off by `allowed`."""
    directory.mkdir(exist_ok=True)
    low, high = ((golden + side).to(observed.dtype) for side in (-allowed, allowed))
    expected = {result: golden, f"{result}_low": low, f"{result}_high": high}
    save_file(expected, directory / "expected.safetensors")
    save_file({result: observed}, directory / "observed.safetensors")


def pixels_of(uri: str) -> np.ndarray:
    """The pixels of a picture, RGBA."""
    png = base64.b64decode(uri.partition("base64,")[2])
    columns, rows = (int.from_bytes(png[i : i + 4], "big") for i in (16, 20))
    at = png.index(b"IDAT")
    pixels = zlib.decompress(png[at + 4 : at + 4 + int.from_bytes(png[at - 4 : at], "big")])
    return np.frombuffer(pixels, np.uint8).reshape(rows, 1 + 4 * columns)[:, 1:].reshape(rows, columns, 4)


def test_the_picture_of_a_failure_shows_which_rows_heads_and_columns_are_wrong(tmp_path):
    golden = torch.randn(3, 16, 512, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    observed = golden.to(torch.bfloat16)
    observed[1, 5, 256:] += 1
    observed[2, 7, 0] = torch.nan
    dump(tmp_path, "output", golden, observed, 1e-2)
    of_row, by_head, by_column = (pixels_of(picture.uri) for picture in pictures(tmp_path, "output"))
    assert (of_row.shape[:2], by_head.shape[:2], by_column.shape[:2]) == ((16, 128), (3, 16), (3, 128))
    assert of_row[7, 0].tolist() == [150, 70, 190, 255]  # of the row with the NaN
    red = (by_head[..., 0] > 200) & (by_head[..., 3] > 150)
    assert red.nonzero()[0].tolist() == [1] and red.nonzero()[1].tolist() == [5]
    assert by_head[2, 7].tolist() == [150, 70, 190, 255]
    assert (by_column[1, 64:, 0] > 200).all() and not (by_column[1, :64, 0] > 200).any()
    assert "257 of 24,576 elements of output are outside the bound" in pictures(tmp_path, "output")[0].description


def test_an_interval_on_one_side_of_the_golden_value_is_judged_as_the_check_does(tmp_path):
    golden = torch.full((1, 16), 2.45694, dtype=torch.float64)
    observed = torch.full((1, 16), 2.453125, dtype=torch.bfloat16)  # the only value in the rounded interval
    observed[0, 3] = 2.609
    dump(tmp_path, "lse", golden, observed, 1e-9)
    (picture,) = pictures(tmp_path, "lse")
    assert "1 of 16 elements" in picture.description and "the worst at (0, 3)" in picture.description


def test_there_is_no_picture_without_tensors_or_when_all_elements_are_right(tmp_path):
    assert pictures(tmp_path, "output") == []
    lse = torch.full((2, 16), -torch.inf, dtype=torch.float64)
    dump(tmp_path, "lse", lse, lse.float(), 0.0)
    assert pictures(tmp_path, "lse") == []
    (tmp_path / "expected.safetensors").write_bytes(b"no safetensors file")
    assert pictures(tmp_path, "lse") == []


def test_a_picture_stands_in_the_page(tmp_path):
    run = Written(tmp_path / "run")
    run.judge({"output": 0.5}, FINDING)
    run.end(exit_status=1)
    golden = torch.zeros(2, 16, 512, dtype=torch.float64)
    dump(dump_of(tmp_path / "run", "output"), "output", golden, golden.bfloat16() + 1, 1e-3)
    write_again(tmp_path / "run")
    images = [attributes for tag, attributes in Page(report(tmp_path / "run")).tags if tag == "img"]
    assert len(images) == 3
    assert all(image["src"].startswith("data:image/png;base64,") for image in images)
