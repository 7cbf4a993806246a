"""What `psserver status` shows of a shard: that it can be read, and that programs get the same."""

from rich.console import Console

from psserver.report import plain, tables
from pswire.messages import StatusReport, VariableStatus
from pswire.schedules import CosineDecay, WarmUp
from pswire.specs import Momentum
from pswire.values import TensorSpec


def shown(report):
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(*tables(report, "host:1"))
    return capture.get()


def report_with(optimizer, global_step=0):
    return StatusReport(0, 1, global_step, 0, (VariableStatus(TensorSpec("W", (2,)), 5, 4, optimizer),))


def test_an_optimizer_is_shown_with_its_fields():
    assert " momentum learning_rate=0.5 momentum=0.9 nesterov=False " in shown(report_with(Momentum(0.5)))
    assert "│ -" in shown(report_with(None))


def test_a_schedule_is_shown_with_its_fields_and_the_learning_rate_of_the_next_push():
    text = shown(report_with(Momentum(WarmUp(10, CosineDecay(0.1, 100))), global_step=35))
    text = " ".join(text.replace("│", " ").split())
    assert "learning_rate=WarmUp(steps=10, then=CosineDecay(initial=0.1, decay_steps=100, alpha=0.0))" in text
    assert "(learning rate now 0.0853553)" in text  # (1 + cos(pi / 4)) / 20


def test_programs_get_a_schedule_as_plain_data():
    (variable,) = plain(report_with(Momentum(WarmUp(10, 0.5))))["variables"]
    assert variable["optimizer"]["learning_rate"] == {"kind": "warm_up", "steps": 10, "then": 0.5}
