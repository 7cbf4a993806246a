"""The picture of downpour_or_sandblaster.py, which imports this: matplotlib, from the extra `plots`."""

from matplotlib.figure import Figure


def draw(options, methods, found, times):
    """Cost and accuracy over time, and the `times` to an accuracy by the number of workers."""
    figure = Figure(figsize=(13, 4.5), layout="constrained")
    cost, accuracy, scaling = figure.subplots(1, 3)
    colors = dict(zip(methods, ("#000000", "#E69F00", "#0072B2"), strict=True))
    for (method, workers), points in found.items():
        style = {"color": colors[method], "linestyle": {1: ":", 2: "--"}.get(workers, "-")}
        label = f"{methods[method]}, {workers} worker{'s' * (workers > 1)}"
        seconds, costs, accuracies = zip(*points, strict=True)
        cost.plot(seconds, costs, label=label, **style)
        accuracy.plot(seconds, accuracies, **style)
    for method, label in methods.items():
        reached = [(workers, at) for (one, workers), at in times.items() if one == method and at is not None]
        if reached:
            scaling.plot(*zip(*reached, strict=True), marker="o", color=colors[method], label=label)
    cost.set(xlabel="seconds", ylabel="training cost", yscale="log")
    accuracy.set(xlabel="seconds", ylabel="test accuracy", ylim=(0.8, None))
    scaling.set(xlabel="workers", ylabel=f"seconds to {100 * options.accuracy:g} % test accuracy", ylim=(0, None))
    scaling.set_xticks(sorted({workers for _, workers in found}))
    for axes in (cost, accuracy, scaling):
        axes.grid(alpha=0.3)
    figure.legend(*cost.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(options.plot, dpi=100)
