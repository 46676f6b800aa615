"""tools/analysis/compare.py: tables, figures and report of runs, from the files that a run writes."""

import base64
import csv
import json
import math
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.colors import to_hex

from megatron.config import load_config
from megatron.config.dump import dump_yaml
from tools.analysis.compare import main
from tools.analysis.comparison import COMPARED, compare
from tools.analysis.figures import draw_all
from tools.analysis.runs import gather, read_run

ROOT = Path(__file__).resolve().parents[2]
KEYS = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "seq_length": 128,
    "train_iters": 100,
    "train_micro_batch_size_per_gpu": 1,
    "data_path": "data/text",
    "tokenizer_type": "CharLevelTokenizer",
    "optimizer": {"type": "Adam", "params": {"lr": 0.1}},
}


def record(length, perplexity, protocol="last", **more):
    common = {"step": 100, "split": "valid", "protocol": protocol, "eval_length": length, "scored_tokens": 4096}
    return {**common, "loss": math.log(perplexity), "perplexity": perplexity, "stderr": 0.01, **more}


@pytest.fixture
def make_run(tmp_path):
    """make_run(name, pos_emb, records or {length: perplexity}, **keys) writes a log folder as a run does, and returns it."""

    def make(name, pos_emb, results, file="evaluations.jsonl", **keys):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "run.yml").write_text(json.dumps({**KEYS, "pos_emb": pos_emb, "log_dir": str(folder), **keys}))
        config = load_config([folder / "run.yml"])
        (folder / "config.yml").write_text(dump_yaml(config))
        records = [record(*pair) for pair in results.items()] if isinstance(results, dict) else results
        about = {"run": name, "pos_emb": config.positional.pos_emb, "training_length": config.model.seq_length}
        (folder / file).write_text("".join(json.dumps({**about, **each}) + "\n" for each in records))
        return folder

    return make


@pytest.fixture
def output(tmp_path):
    return tmp_path / "compare"


@pytest.fixture
def runs(make_run):
    """KERPLE, ALiBi and three seeds of DAPE-KERPLE; a killed run's half line and an older step are in the files too."""
    kerple = make_run("kerple", "kerple_log", {128: 50.0, 256: 49.0, 1024: 48.0})
    with open(kerple / "evaluations.jsonl", "a") as file:
        file.write(json.dumps(record(1024, 1.0, step=50)) + "\n" + '{"step": 100, "spl')
    seeds = [make_run(f"dape_{seed}", "dape_kerple", {128: 49.0 + seed, 256: 47.0 + seed, 1024: 40.0}, seed=seed) for seed in (1, 2, 3)]
    return [*seeds, make_run("alibi", "alibi", {128: 50.5, 256: 48.5}), kerple]


def call(*arguments):
    return main([str(each) for each in arguments])


def error_of(capsys, *arguments):
    assert call(*arguments) == 2
    message = capsys.readouterr().err.strip().splitlines()
    assert len(message) == 1 and message[0].startswith("error: ")
    return message[0]


def comparison(*folders, anyway=False):
    return compare(gather([read_run(folder, "valid") for folder in folders]), "valid", COMPARED, anyway)


def test_command_writes_every_file(runs, output, tmp_path):
    command = [sys.executable, ROOT / "tools/analysis/compare.py", *runs, "--output", output]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    names = ["compare.json", "perplexity.png", "report.html", "table.csv", "table.md", "table.tex"]
    assert sorted(path.name for path in output.iterdir()) == names
    assert all(name in done.stdout for name in names)
    assert "note: Trained at 128, last: not" not in done.stderr


def test_markdown_table_has_means_over_seeds_and_the_best_of_each_length_in_bold(runs, output):
    assert call(*runs, "--output", output) == 0
    lines = (output / "table.md").read_text().splitlines()
    start = lines.index("## Perplexity, last, trained at 128 (valid split)") + 2
    assert lines[start : start + 5] == [
        "| method | seeds | 128 (trained) | 256 | 1,024 |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| ALiBi | 1 | 50.50 ± 0.51 | **48.50 ± 0.48** |  |",
        "| KERPLE-log | 1 | **50.00 ± 0.50** | 49.00 ± 0.49 | 48.00 ± 0.48 |",
        "| DAPE-KERPLE-log | 3 | 51.00 ± 1.00 | 49.00 ± 1.00 | **40.00 ± 0.00** |",
    ]
    assert lines[start + 6].startswith("Bold: the lowest perplexity of each length. ± is the standard deviation over the seeds")


def test_latex_and_csv_and_json_say_the_same(runs, output):
    assert call(*runs, "--output", output) == 0
    tex = (output / "table.tex").read_text()
    assert r"DAPE-KERPLE-log & 3 & 51.00 $\pm$ 1.00 & 49.00 $\pm$ 1.00 & \textbf{40.00 $\pm$ 0.00} \\" in tex
    assert r"KERPLE: 162M" not in tex  # KERPLE trained at 512
    with open(output / "table.csv", newline="") as file:
        rows = {(row["source"], row["method"]): row for row in csv.DictReader(file)}
    row = rows["measured", "DAPE-KERPLE-log"]
    assert [row[key] for key in ("training_length", "protocol", "quantity", "seeds")] == ["128", "last", "perplexity", "3"]
    assert float(row["128"]) == statistics.fmean((50, 51, 52)) and float(row["± 128"]) == statistics.stdev((50, 51, 52))
    assert float(rows["measured", "ALiBi"]["± 256"]) == pytest.approx(48.5 * 0.01)
    content = json.loads((output / "compare.json").read_text())
    (table,) = content["tables"]
    cell = {each["method"]: each["lengths"] for each in table["rows"]}["DAPE-KERPLE-log"]["128"]
    assert cell == {"mean": 51.0, "std": 1.0, "stderr": None, "values": [50.0, 51.0, 52.0], "best": False}
    assert [run["seed"] for run in content["methods"][-1]["runs"]] == [1, 2, 3]


def test_papers_figures_stand_beside_those_of_the_same_method_and_training_length(runs, make_run, output):
    other = [make_run("kernel", "dape_kerple", {128: 40.0}, dape_kernel_size=3), make_run("fire", "fire", {128: 50.0})]
    assert call(*runs, *other, "--output", output) == 0
    text = (output / "table.md").read_text()
    lines = text[text.index("## The papers' figures") :].splitlines()
    assert lines[2:] == [
        "| method | source | 128 (trained) | 256 | 1,024 | 8,192 |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        "| ALiBi | measured here: last | 50.50 | 48.50 |  |  |",
        "| ALiBi | DAPE: 125M, ArXiv, last |  |  |  | 5.85 |",
        "| DAPE-KERPLE-log | measured here: last | 51.00 | 49.00 | 40.00 |  |",
        "| DAPE-KERPLE-log | DAPE: 125M, ArXiv, last |  |  | 5.21 | 5.00 |",
        "",
        "The papers' figures are of other models, on other data and with other tokenizers, as each row says. Compare the order of the "
        "methods and the course over the lengths; never the values.",
    ]
    rows = json.loads((output / "compare.json").read_text())["papers"]["rows"]
    assert [(row["method"], row["perplexities"]) for row in rows] == [
        ("ALiBi", {"8192": 5.85}),
        ("DAPE-KERPLE-log", {"1024": 5.21, "8192": 5.0}),
    ]


def test_each_training_length_has_its_own_table_and_best(make_run, output):
    folders = [
        make_run(f"{name}_{length}", name, {256: perplexity, 512: perplexity}, seq_length=length)
        for name, length, perplexity in (("alibi", 128, 60.0), ("rotary", 128, 70.0), ("alibi", 256, 30.0), ("rotary", 256, 40.0))
    ]
    assert call(*folders, "--output", output) == 0
    lines = (output / "table.md").read_text().splitlines()
    assert "Do not compare perplexities across training lengths" in lines[0] and lines[0].startswith("> **Note:**")
    assert "| ALiBi | 1 | **60.00 ± 0.60** | **60.00 ± 0.60** |" in lines and "| ALiBi | 1 | **30.00 ± 0.30** | **30.00 ± 0.30** |" in lines
    for name in ("table.tex", "table.csv", "compare.json", "report.html"):
        assert "Do not compare perplexities across training lengths" in (output / name).read_text()
    titles = [axes.get_title() for axes in draw_all(comparison(*folders))["perplexity.png"].axes]
    assert titles == ["last, trained at 128 (valid split)", "last, trained at 256 (valid split)"]


def test_equal_as_written_is_equally_best_and_no_seer_of_the_future_or_infinity_is(make_run):
    results = {"alibi": 50.001, "kerple_log": 50.004, "rotary": math.inf}
    folders = [make_run(name, name, [{**record(128, 50.0), "perplexity": value}]) for name, value in results.items()]
    leaking = {"dape_kernel_size": 3, "dape_information_leakage": True, "attention_backend": "eager"}
    folders.append(make_run("leaking", "dape_none", {128: 1.5}, **leaking))
    found = comparison(*folders)
    assert found.tables[0].best(128) == {"ALiBi", "KERPLE-log"}
    assert any("sees what it predicts" in note and "information leakage" in note for note in found.notes)


def test_one_method_alone_is_no_best(make_run):
    assert comparison(make_run("alibi", "alibi", {128: 50.0})).tables[0].best(128) == set()


def test_methods_of_one_name_are_told_apart_by_their_settings(make_run):
    folders = [make_run(f"width_{width}", "dape_alibi", {128: 50.0}, dape_hidden_size=width) for width in (4, 8)]
    folders.append(make_run("fire_options", "alibi", {128: 50.0}, fire_hidden_size=5))  # which ALiBi does not read
    folders.append(make_run("seed", "alibi", {128: 52.0}, seed=7))
    found = comparison(*folders)
    labels = [(method.label, len(method.runs)) for method in found.methods]
    assert labels == [("ALiBi", 2), ("DAPE-ALiBi, dape_hidden_size 4", 1), ("DAPE-ALiBi, dape_hidden_size 8", 1)]


def test_notes_say_what_else_differs(make_run):
    folders = [
        make_run("alibi", "alibi", {128: 50.0, 256: 50.0}),
        make_run("fire", "fire", [record(128, 50.0, scored_tokens=99, step=70)], train_iters=70),
        make_run("seed", "alibi", {128: 50.0}, seed=7),
    ]
    notes = "\n".join(comparison(*folders).notes)
    assert "differ in more than positional encoding and seed: train_iters (see the settings)" in notes
    assert "not all 2 seeds of ALiBi have the lengths 256 (1)" in notes
    assert "at 128 the runs were evaluated on different amounts of text (99, 4096 tokens)" in notes
    assert f"step 70: {folders[1]}; step 100: {folders[0]}, {folders[2]}" in notes


@pytest.mark.parametrize("keys", [{"data_path": "data/other"}, {"split": "90,10,0"}, {"tokenizer_type": "GPT2BPETokenizer"}])
def test_runs_on_other_tokens_are_refused_or_marked_in_every_output(make_run, output, capsys, keys):
    if "tokenizer_type" in keys:
        keys = {**keys, "vocab_file": "vocab.json", "merge_file": "merges.txt"}
    folders = [make_run("one", "alibi", {128: 50.0}), make_run("two", "fire", {128: 50.0}, **keys)]
    message = error_of(capsys, *folders, "--output", output)
    assert "cannot be compared" in message and next(iter(keys)) in message and "--anyway" in message
    assert not output.exists()
    assert call(*folders, "--output", output, "--anyway") == 0
    for name in ("table.md", "table.tex", "table.csv", "compare.json", "report.html"):
        assert "NOT COMPARABLE" in (output / name).read_text()


def test_figures_show_the_means_and_dape_in_the_colour_of_its_base(runs):
    figure = draw_all(comparison(*runs))["perplexity.png"]
    (axes,) = figure.axes
    drawn = {bars.get_label(): bars[0] for bars in axes.containers}
    assert list(drawn["DAPE-KERPLE-log"].get_xdata()) == [128, 256, 1024]
    assert list(drawn["DAPE-KERPLE-log"].get_ydata()) == [51.0, 49.0, 40.0]
    colours = {name: to_hex(line.get_color()) for name, line in drawn.items()}
    assert colours["DAPE-KERPLE-log"] == colours["KERPLE-log"] != colours["ALiBi"]
    assert drawn["KERPLE-log"].get_linestyle() == "-" and drawn["DAPE-KERPLE-log"].get_linestyle() == "--"
    assert axes.get_xscale() == axes.get_yscale() == "log"
    (mark,) = [line for line in axes.lines if line.get_label() == "training length"]
    assert list(mark.get_xdata()) == [128, 128]


def test_position_wise_losses_and_information_gain(make_run, output):
    def results(shift):
        buckets = {"positions": [1, 3, 512], "losses": [6.0 + shift, 5.0, "NaN"], "stderrs": [0.1, None, 0.1]}
        gains = [record(length, 50.0, "information_gain", gain=0.5 + shift, loss_short=5.0) for length in (256, 512)]
        return [*gains, record(512, 50.0, "position_wise", **buckets), record(256, 50.0, "sliding", stride=64)]

    folders = [make_run(f"seed_{seed}", "alibi", results(seed), seed=seed) for seed in (0, 1)]
    folders.append(make_run("fire", "fire", results(-1)))
    assert call(*folders, "--output", output) == 0
    assert {"position_wise.png", "information_gain.png", "perplexity.png"} <= {path.name for path in output.iterdir()}
    content = json.loads((output / "compare.json").read_text())
    alibi, fire = content["position_wise"]
    assert (alibi["method"], alibi["eval_length"], alibi["positions"]) == ("ALiBi", 512, [1, 3, 512])
    assert alibi["losses"] == [6.5, 5.0, "NaN"] and alibi["spreads"] == [pytest.approx(math.sqrt(0.5)), 0.0, None]
    assert fire["spreads"] == [0.1, None, 0.1]
    text = (output / "table.md").read_text()
    assert "## Perplexity, sliding, stride 64, trained at 128 (valid split)" in text
    gains = text[text.index("## Information gain, trained at 128") :].splitlines()
    assert gains[4:6] == [
        "| ALiBi | 2 | +1.0000 ± 0.7071 | +1.0000 ± 0.7071 |",
        "| FIRE | 1 | -0.5000 ± 0.0100 | -0.5000 ± 0.0100 |",
    ]
    figure = draw_all(comparison(*folders))["position_wise.png"]
    drawn = {bars.get_label(): bars[0] for bars in figure.axes[0].containers}
    assert list(drawn["ALiBi"].get_xdata()) == [1.0, 2.5]  # the middles of the positions 1 and 2 ... 3
    assert list(drawn["ALiBi"].get_ydata()) == [6.5, 5.0]
    assert call(*folders, "--output", output, "--protocol", "sliding") == 0
    assert not {"position_wise.png", "information_gain.png"} & {path.name for path in output.iterdir()}


def test_report_needs_no_other_file_and_escapes_text(make_run, output):
    evil = make_run("<script>alert(1)</script> & x", "alibi", {128: 50.0}, data_path="<b>data</b>")
    folders = [evil, make_run("fire", "fire", {128: 51.0}, data_path="<b>data</b>", dape_hidden_size=9, hidden_dropout=0.25)]
    assert call(*folders, "--output", output, "--title", "A < B & C") == 0
    page = (output / "report.html").read_text()
    assert "<script" not in page and "<b>data" not in page
    assert "<title>A &lt; B &amp; C</title>" in page and "&lt;script&gt;alert(1)&lt;/script&gt; &amp; x" in page
    assert not re.search(r"https?:|<link|@import|url\(", page)
    (source,) = re.findall(r'src="([^"]*)"', page)
    assert base64.b64decode(source.removeprefix("data:image/png;base64,")) == (output / "perplexity.png").read_bytes()
    assert "<tr><td>hidden_dropout</td><td>0.0</td><td>0.25</td></tr>" in page  # differs
    assert "<tr><td>hidden_size</td><td>32</td></tr>" in page  # shared
    assert '<td class="best">50.00 ± 0.50</td>' in page
    assert "log_dir" not in page


def test_first_file_with_evaluations_counts(make_run):
    folder = make_run("run", "alibi", [{"step": 1, "lm_loss": 9.0}, record(128, 60.0)], file="metrics.jsonl")
    (folder / "results.json").write_text(json.dumps({"results": [record(128, 70.0)]}))
    assert read_run(folder, "valid").source == "metrics.jsonl"
    (folder / "evaluations.jsonl").write_text(json.dumps(record(128, 50.0)) + "\n" + json.dumps(record(128, 55.0)) + "\n")
    run = read_run(folder, "valid")
    assert run.source == "evaluations.jsonl" and [each["perplexity"] for each in run.records] == [55.0]  # the later line counts
    (folder / "evaluations.jsonl").unlink()
    (folder / "metrics.jsonl").unlink()
    assert [each["perplexity"] for each in read_run(folder, "valid").records] == [70.0]


def test_wrong_folders_get_one_clear_message(make_run, tmp_path, output, capsys):
    good = make_run("good", "alibi", {128: 50.0})
    (tmp_path / "empty").mkdir()
    assert "nowhere: no such folder. Give a run's log folder" in error_of(capsys, good, tmp_path / "nowhere", "-o", output)
    assert "config.yml: is a file. Give a run's log folder" in error_of(capsys, good / "config.yml", "-o", output)
    assert "empty/config.yml: no such file" in error_of(capsys, tmp_path / "empty", "-o", output)
    assert "is given twice" in error_of(capsys, good, tmp_path / "empty" / ".." / "good", "-o", output)
    training = make_run("training", "alibi", [{"step": 1, "lm_loss": 3.0}], file="metrics.jsonl")
    assert "training: holds no evaluation" in error_of(capsys, training, "-o", output)
    again = make_run("again", "alibi", {128: 51.0})
    assert "the same settings and the same seed (1234)" in error_of(capsys, good, again, "-o", output)
    assert not output.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--protocol", "middle"],
            "--protocol: middle is unknown. Choose from last, non_overlapping, sliding, information_gain, position_wise.",
        ),
        (["--protocol", "sliding"], "--protocol: no run has results of sliding on the valid split, only of last."),
        (["--split", "test"], "no evaluation of split test, only of valid. Choose one with --split."),
        (["--step", "7"], "no evaluation of step 7, only of 100. Choose one with --step."),
    ],
)
def test_wrong_options_get_one_clear_message(make_run, output, capsys, options, message):
    assert message in error_of(capsys, make_run("run", "alibi", {128: 50.0}), "-o", output, *options)
    assert not output.exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"protocol": "first"}, "evaluations.jsonl:1: protocol 'first' is unknown; known are last, "),
        ({"perplexity": "x"}, "evaluations.jsonl:1: perplexity of an evaluation is 'x', not a number"),
        ({"step": None}, "evaluations.jsonl:1: step of an evaluation is None, not a whole number"),
        ({"protocol": "information_gain"}, "gain of an evaluation is None, not a number"),
        ({"protocol": "position_wise", "positions": [1]}, "are not three lists of one length"),
        ({"protocol": "position_wise", "positions": [1], "losses": ["x"], "stderrs": [None]}, "are not all numbers"),
    ],
)
def test_wrong_records_are_named_with_their_line(make_run, output, capsys, fields, message):
    folder = make_run("run", "alibi", [{**record(128, 50.0), **fields}])
    assert message in error_of(capsys, folder, "-o", output)


def test_wrong_configurations_are_named(make_run, output, capsys):
    folder = make_run("run", "alibi", {128: 50.0})
    for content, message in (
        ("pos_emb: [", "config.yml: is not valid YAML"),
        ("text", "config.yml: is no configuration of a run"),
        ("pos_emb: alibi", "config.yml: seq_length is None, not a number of tokens"),
        ("pos_emb: alibo\nseq_length: 128", "config.yml: pos_emb: alibo names no positional encoding"),
    ):
        (folder / "config.yml").write_text(content)
        assert message in error_of(capsys, folder, "-o", output)


def test_output_that_cannot_be_written(make_run, tmp_path, capsys):
    folder = make_run("run", "alibi", {128: 50.0})
    (tmp_path / "file").write_text("")
    assert "is not a folder" in error_of(capsys, folder, "-o", tmp_path / "file")
    assert "is not a folder" in error_of(capsys, folder, "-o", tmp_path / "file" / "inside")
