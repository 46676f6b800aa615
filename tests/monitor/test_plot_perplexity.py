"""tools/analysis/plot_perplexity.py: what it reads, draws, writes and refuses."""

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

TOOL = Path(__file__).resolve().parents[2] / "tools" / "analysis" / "plot_perplexity.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("plot_perplexity", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def line(step, length, nats, **keys):
    record = {"step": step, "split": "valid", "protocol": "last", "eval_length": length, "scored_tokens": 512, "loss": nats}
    return {**record, "perplexity": math.exp(nats), "stderr": 0.1, **keys}


@pytest.fixture
def metrics(tmp_path):
    """A run of 20 steps that was killed and resumed: step 20 is there twice."""
    folder = tmp_path / "run"
    folder.mkdir()
    records = [
        {"step": 10, "lm_loss": 3.0},
        line(10, 128, 3.0), line(10, 256, 3.2),
        line(20, 256, 9.0), line(20, 128, 9.0),
        line(20, 256, 2.5), line(20, 128, 2.0), line(20, 512, 2.6),
        line(20, 128, 1.0, split="test"),
    ]  # fmt: skip
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + '{"step": 30, "lm_')
    (folder / "config.yml").write_text("seq_length: 128\npos_emb: alibi\n")
    return path


@pytest.fixture
def results(tmp_path):
    path = tmp_path / "results.json"
    records = [line(700, 128, 4.0), line(700, 512, 3.5, stderr="NaN"), line(700, 2048, 3.4)]
    path.write_text(json.dumps({"pos_emb": "dape_kerple", "training_length": 128, "step": 700, "results": records}))
    return path


def test_last_evaluation_of_a_metrics_file(tool, metrics, capsys):
    curve = tool.read_curve(metrics)
    assert (curve.label, curve.step, curve.train_length) == ("alibi", 20, 128)
    assert [(point.length, point.loss) for point in curve.points] == [(128, 2.0), (256, 2.5), (512, 2.6)]
    assert curve.points[0].error == pytest.approx(0.1 * math.exp(2.0))
    assert "line 10" in capsys.readouterr().err  # the half line is named


def test_another_step_or_split(tool, metrics):
    assert [point.loss for point in tool.read_curve(metrics, step=10).points] == [3.0, 3.2]
    assert [point.loss for point in tool.read_curve(metrics, split="test").points] == [1.0]


def test_results_file_knows_its_run(tool, results):
    curve = tool.read_curve(results)
    assert (curve.label, curve.step, curve.train_length) == ("dape_kerple", 700, 128)
    assert [point.length for point in curve.points] == [128, 512, 2048]
    assert curve.points[1].error == 0.0  # not known


def test_drawn_is_what_was_measured(tool, metrics, results):
    figure = tool.draw([tool.read_curve(metrics), tool.read_curve(results)], "a title")
    (axes,) = figure.axes
    first, second = (container for container in axes.containers)
    assert list(first[0].get_xdata()) == [128, 256, 512]
    assert list(first[0].get_ydata()) == pytest.approx([math.exp(2.0), math.exp(2.5), math.exp(2.6)])
    (segments,) = (bars.get_segments() for bars in first[2])
    assert segments[0][:, 1].tolist() == pytest.approx([0.9 * math.exp(2.0), 1.1 * math.exp(2.0)])
    assert list(second[0].get_xdata()) == [128, 512, 2048]
    assert axes.get_xscale() == "log" and axes.xaxis.get_transform().base == 2
    assert [label.get_text() for label in axes.get_xticklabels()] == ["128", "256", "512", "2,048"]
    assert axes.get_title() == "a title"
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert sorted(names) == ["alibi, step 20", "dape_kerple, step 700", "training length"]
    marks = [each for each in axes.lines if each.get_linestyle() == "--"]
    assert [mark.get_xdata()[0] for mark in marks] == [128]


def test_exploding_perplexity_is_drawn_on_a_logarithmic_axis_and_infinity_left_out(tool, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        "\n".join(map(json.dumps, (line(1, 128, 2.0), line(1, 256, 6.0), line(1, 512, 9.0, loss=800.0, perplexity="Infinity"))))
    )
    figure = tool.draw([tool.read_curve(path)], "")
    assert figure.axes[0].get_yscale() == "log"
    assert list(figure.axes[0].containers[0][0].get_xdata()) == [128, 256]


def test_two_runs_of_one_kind_are_told_apart(tool, results):
    curves = [tool.read_curve(results), tool.read_curve(results)]
    assert [curve.label for curve in tool.label(curves, None)] == ["dape_kerple (1)", "dape_kerple (2)"]
    assert [curve.label for curve in tool.label(curves, ["a", "b"])] == ["a", "b"]


def test_command_writes_a_whole_png_and_prints_a_table(metrics, results, tmp_path):
    output = tmp_path / "new" / "plot.png"
    command = [sys.executable, TOOL, metrics, results, "--output", output]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"PATH": "", "COLUMNS": "120"})
    assert done.returncode == 0, done.stderr
    for cell in ("2,048", f"{math.exp(3.4):.4f}", f"{math.exp(2.0):.4f} ± {0.1 * math.exp(2.0):.4f} *"):
        assert cell in done.stdout
    assert [path.name for path in output.parent.iterdir()] == ["plot.png"]
    with Image.open(output) as image:
        assert image.format == "PNG" and image.size == (1050, 675)
        colours = {colour for _, colour in image.convert("RGB").getcolors(maxcolors=1 << 20)}
    assert {(31, 119, 180), (255, 127, 14)} <= colours  # matplotlib's first two: both curves are there


ONE = json.dumps(line(1, 128, 2.0))
TWO_PROTOCOLS = ONE + "\n" + json.dumps(line(1, 128, 2.0, protocol="sliding"))


def odd(value):
    return json.dumps(line(1, 128, 2.0, perplexity=value))


def of_length(length, **keys):
    return json.dumps({"training_length": length, "results": [line(1, 128, 2.0, **keys)]})


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("metrics.jsonl", None, [], "metrics.jsonl: cannot be read: No such file"),
        ("metrics.jsonl", "", [], "holds no evaluation"),
        ("metrics.jsonl", "plain text\n", [], "is no metrics.jsonl: not one line is a JSON object"),
        ("metrics.jsonl", ONE, ["--split", "test"], "no evaluation of split test, only of valid. Choose one with --split"),
        ("metrics.jsonl", ONE, ["--step", "7"], "no evaluation of step 7, only of 1. Choose one with --step"),
        ("metrics.jsonl", ONE, ["--labels", "a", "b"], "--labels: 2 names for 1 files"),
        ("metrics.jsonl", odd("x"), [], "perplexity of an evaluation is 'x', not a number"),
        ("metrics.jsonl", odd(None), [], "perplexity of an evaluation is None, not a number"),
        ("metrics.jsonl", odd(True), [], "metrics.jsonl:1: perplexity of an evaluation is True, not a number"),
        ("metrics.jsonl", "\n\n" + odd(-2), [], "metrics.jsonl:3: perplexity of an evaluation is -2, not more than 0"),
        ("metrics.jsonl", odd(10**400), [], "not a number"),
        ("metrics.jsonl", json.dumps(line(1, 128, 2.0, split=["valid"])), [], "jsonl:1: split of an evaluation is ['valid'], not a text"),
        ("metrics.jsonl", json.dumps(line(1, 128, 2.0, stderr=-0.1)), [], "stderr of an evaluation is -0.1, not at least 0"),
        ("metrics.jsonl", json.dumps(line("ten", 128, 2.0)), [], "step of an evaluation is 'ten', not a whole number"),
        ("metrics.jsonl", json.dumps(line(1, 1.5, 2.0)), [], "eval_length of an evaluation is 1.5, not a number of tokens"),
        ("metrics.jsonl", ONE, ["--train-length", "0"], "--train-length: must be at least 1 token, not 0"),
        ("results.json", of_length("x"), [], "results.json: training_length is 'x', not a number of tokens"),
        ("results.json", of_length(0), [], "results.json: training_length is 0, not a number of tokens"),
        ("results.json", of_length(128, stderr=-1), [], "results.json: results[0]: stderr of an evaluation is -1"),
        ("metrics.jsonl", odd("NaN"), [], "no perplexity is a finite number"),
        ("metrics.jsonl", TWO_PROTOCOLS, [], "several protocols; choose one with --protocol: last, sliding"),
        ("results.json", "{", [], "results.json: is not valid JSON"),
        ("results.json", "{}", [], "is no results file"),
    ],
)
def test_mistakes_get_one_clear_message(tool, tmp_path, capsys, name, content, options, message):
    path, output = tmp_path / name, tmp_path / "plot.png"
    if content is not None:
        path.write_text(content)
    assert tool.main([str(path), "--output", str(output), *options]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and "\n" not in error
    assert message in error
    assert not output.exists()


def test_output_that_cannot_be_written(tool, results, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert tool.main([str(results), "--output", str(tmp_path / "file" / "plot.png")]) == 2
    assert "--output: cannot write" in capsys.readouterr().err
    assert not list(tmp_path.glob(".writing*"))
