"""The static site's grids: what their files hold, how exactly, and how a build goes on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.catalog.drafters import find_drafter
from specmargin.catalog.lookup import bundled_model
from specmargin.errors import InputError
from specmargin.formats import ENGINES
from specmargin.show.site import build, codes, grids
from specmargin.show.site.card import card_svg, headline
from specmargin.show.site.templates import command_templates, templates
from tests.cell_files import header_of, numbers_of, read_table, read_varints
from tests.command_line import ended

pytest.importorskip("vl_convert")
CELL = grids.Cell(model="qwen3-8b", gpu="h100", gpus=1, engine="vllm", drafters=("eagle", "ngram"))


# --- numbers in few bytes ---


@given(st.lists(st.integers(-(2**40), 2**40)))
def test_numbers_come_back(values: list[int]) -> None:
    assert list(read_varints(codes.varints(values))) == values


@given(st.data())
def test_tables_come_back(data: st.DataObject) -> None:
    """Columns and later contexts may end early, as those of an engine with CUDA graphs do."""
    columns, numbers = data.draw(st.integers(1, 4)), st.integers(-(2**40), 2**40)
    lengths = [sorted(data.draw(st.lists(st.integers(0, 6), min_size=columns, max_size=columns)))[::-1]] * 3
    contexts = data.draw(st.permutations([1024.0, 8192.0, 65_536.0]))
    table = {
        tokens: [np.array(data.draw(st.lists(numbers, min_size=n, max_size=n)), dtype=np.int64) for n in length]
        for tokens, length in zip(contexts, lengths, strict=True)
    }
    content = codes.packed(b"{}", codes.coded(table))
    left = numbers_of(content)
    read = read_table(left, contexts, columns)
    assert list(left) == []
    assert {at: [each.tolist() for each in row] for at, row in read.items()} == {
        at: [each.tolist() for each in row] for at, row in table.items()
    }


@given(st.lists(st.floats(1e-3, 1e3), min_size=1))
def test_quantising_is_off_by_half_a_quantum_at_most(values: list[float]) -> None:
    exact = np.array(values)
    restored = codes.quantised(exact, codes.QUANTUM) * codes.QUANTUM
    assert np.abs(restored - exact).max() <= codes.QUANTUM / 2 * (1 + 1e-6)


def test_a_smooth_table_takes_less_than_a_byte_per_number() -> None:
    smooth = codes.quantised(np.sqrt(np.arange(1.0, 513.0)), codes.QUANTUM)
    table = {float(at): [smooth + at * column for column in range(4)] for at in (1, 2)}
    assert len(codes.packed(b"", codes.coded(table))) < 2 * smooth.size


# --- the file of a cell ---


def test_a_file_holds_the_prices_to_a_millionth_of_a_step() -> None:
    """Plain steps, verify steps and drafting, at every context with every batch."""
    content = grids.cell_file(CELL)
    header, pricer = header_of(content), CELL.pricer("eagle")[1]
    anchors = np.array(header["anchors"])
    columns = 10 + header["drafters"][0]["depth"]
    for tokens, row in read_table(numbers_of(content), header["contexts"], columns).items():
        exact = pricer.grid(np.arange(1, 513), grids.DEPTH, tokens)
        priced = [exact.no_spec_seconds, *exact.verify_seconds.T, *exact.draft_seconds.T[1:]]
        for column, series in enumerate(row):
            count = min(series.size, 512)
            unit = np.interp(np.arange(1, count + 1), anchors[:, 0], anchors[:, 1])
            error = np.abs(series[:count] * codes.QUANTUM - priced[column][:count] / unit)
            assert error.max() <= codes.QUANTUM / 2 * (1 + 1e-6), (tokens, column)
        assert row[2].size == row[0].size and row[9].size == 512 // 9  # depth 1, and the last with a CUDA graph


def test_a_file_ends_with_the_last_number_that_the_page_reads() -> None:
    content = grids.cell_file(CELL)
    header, numbers = header_of(content), numbers_of(content)
    made = grids.Grids(CELL)
    depth = header["drafters"][0]["depth"]
    read_table(numbers, made.contexts, 10 + depth)
    read_table(numbers, made.all_contexts, 10 + depth)
    for _ in range(2):
        read_table(numbers, made.contexts, 9)
    (memory,) = read_table(numbers, [0.0], 1 + sum(each["depth"] + 1 for each in header["drafters"])).values()
    assert list(numbers) == []
    held = CELL.pricer("eagle")[1].sequence_bytes(3, made.memory_contexts[0])
    assert memory[header["drafters"][0]["columns"]["memory"] + 3][0] * codes.BYTES == held


def test_a_large_model_gets_the_gpus_it_needs() -> None:
    assert grids.enough_gpus("qwen3-8b", "h200", "eagle") == 1
    assert grids.enough_gpus("deepseek-v3", "h200", "mtp") >= 8


def test_what_fits_nowhere_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match="fits on no number of a10 GPUs that has a price"):
        grids.enough_gpus("qwen3.8-2.4t-a95b", "a10", "mtp")


# --- flags ---


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("drafter", build.DRAFTERS)
def test_settings_have_slots_where_numbers_go(engine: str, drafter: str) -> None:
    made = templates(ENGINES[engine], find_drafter(drafter, bundled_model("qwen3.6-35b-a3b")))
    several = () if made["one_depth"] else ("many", "stops")
    for form in ("one", *several):
        text = f"{made[form]['text']} {made[form]['file']}"
        assert "{depth}" in text and (form == "one" or "{entries}" in text)
    assert ("{depth}" in made["entry"]) or not several
    assert made["off_one"] and made["off_many"]


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_commands_keep_no_made_up_number(engine: str) -> None:
    assert re.search(r"7777|85547", json.dumps(command_templates(engine, "qwen3-8b", 2))) is None


# --- the build ---


def test_names_are_checked_before_anything_is_priced() -> None:
    with pytest.raises(InputError, match=r"--models: 'qwen3\.6-35b' is not bundled; nearest"):
        build.select("qwen3.6-35b", "h200", "vllm", "own")
    with pytest.raises(InputError, match="h201"):
        build.select("qwen3-8b", "h201", "vllm", "own")
    with pytest.raises(InputError, match="unknown engine"):
        build.select("qwen3-8b", "h200", "vlm", "own")
    with pytest.raises(InputError, match="--drafters: 'ssd'"):
        build.select("qwen3-8b", "h200", "vllm", "ssd")


def test_all_means_all() -> None:
    chosen = build.select("all", "all", "all", "all")
    assert len(chosen.models) > 40 and len(chosen.gpus) > 12 and len(chosen.engines) == 4


def test_a_model_without_a_head_has_no_mtp() -> None:
    assert build.drafters_of("qwen3-8b", ("own", "mtp", "ngram")) == ("eagle", "ngram")
    assert build.drafters_of("deepseek-v3", ("own", "ngram")) == ("mtp", "ngram")


def test_a_stopped_build_goes_on(tmp_path: Path) -> None:
    """Finished cells are kept; a missing file, a cut line and other inputs are built again."""
    chosen = build.select("qwen3-8b", "h100,a10", "vllm", "own")
    first, built = build.build_cells(chosen, tmp_path, 2)
    assert built == 2 and all(outcome.path for outcome in first)
    again, built = build.build_cells(chosen, tmp_path, 1)
    assert built == 0 and again == first
    assert first[0].path is not None
    (tmp_path / first[0].path).unlink()
    record = tmp_path / build.FINISHED
    record.write_text(record.read_text() + '{"key": "cut off')
    _, built = build.build_cells(chosen, tmp_path, 1)
    assert built == 1
    more = build.select("qwen3-8b", "h100,a10", "vllm", "own,ngram")
    _, built = build.build_cells(more, tmp_path, 1)
    assert built == 2


_KILLED = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor
from specmargin.show.site.build import _end_with_the_build
context = multiprocessing.get_context("spawn")
pool = ProcessPoolExecutor(1, mp_context=context, initializer=_end_with_the_build)
print(pool.submit(os.getpid).result(), flush=True)
time.sleep(600)
"""


def test_workers_end_with_a_killed_build() -> None:
    """Its output is closed once nobody holds it: neither the build nor its worker."""
    started = subprocess.Popen([sys.executable, "-c", _KILLED], stdout=subprocess.PIPE)
    assert started.stdout is not None and int(started.stdout.readline()) != started.pid
    started.kill()
    started.communicate(timeout=60)


# --- the card ---


def test_the_card_says_what_a_plan_says() -> None:
    rows = [[1, 3, 1.84], [64, 1, 1.1], [128, 0, 0.99]]
    assert headline("m", "2 × h200", rows) == (
        "Speculation makes m 1.84× as fast at batch 1, 1.10× at batch 64 on 2 × h200"
    )
    assert headline("m", "h200", [[1, 0, 1.0]]) == "Speculation does not pay for m on h200"
    assert "1.84× with speculation at batch 1" in card_svg("m<1>", "h200", rows)
    assert "m&lt;1&gt;" in card_svg("m<1>", "h200", rows)


# --- the command ---


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--models", "gpt-5"], "--models: 'gpt-5' is not bundled"),
        (["--models", ","], "--models is empty; give names, or all"),
        (["--gpus", "h201"], "h201"),
        (["--url", "example.org"], "--url: give a whole address, such as https://example.org/moe"),
        (["--models", "qwen3.8-2.4t-a95b", "--gpus", "a10", "--jobs", "1"], "no cell of this site can be priced"),
    ],
)
def test_bad_input_ends_in_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    said = ended("site", str(tmp_path / "out"), *arguments)
    assert said.code == 2 and sentence in said.err and said.err.count("\n") == 1


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    said = ended("site", str(tmp_path / "out"))
    assert said.code == 2 and "is a file; give the name of a folder" in said.err


def test_the_command_writes_and_resumes(tmp_path: Path) -> None:
    whole = ["site", str(tmp_path), "--models", "qwen3-8b", "--gpus", "h100", "--engines", "sglang", "--jobs", "1"]
    first, again = (json.loads(ended(*whole, "--json").out) for _ in range(2))
    assert (first["cells"], first["built_now"], again["built_now"]) == (1, 1, 0)
    assert again["bytes"] == first["bytes"] < 3_000_000
    names = {file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*") if file.is_file()}
    wanted = {
        "index.html",
        "qwen3-8b/index.html",
        "story/index.html",
        "data/site.json",
        "data/qwen3-8b/h100-sglang.bin",
    }
    assert wanted <= names
