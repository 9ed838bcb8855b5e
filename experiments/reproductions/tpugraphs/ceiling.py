"""The noise ceiling: Kendall's tau of a model that knows the true mean runtime of every configuration.

It is below 1 because the measured runtimes are noisy; repeated measurements of one configuration tell by how much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from gst.cost.metrics import kendall_tau
from gst.graphs.graph import Graph, groups_of_equals
from gst.graphs.segments import SegmentedGraph

BINS = 6  # of the grid of true runtimes, to the least standard deviation of a measurement
REACH = 5  # standard deviations that a measurement may lie off
LEVELS, REPEATS_OF_LEVEL = 10, 200  # of runtimes with noise of their own: at most so many, of at least so many repeats
LEAST = 0.01  # of the pooled variance, where a level has less
STEP = 1.15  # between the widths of noise that are told apart
ITERATIONS = 100  # of the deconvolution; 50 to 200 give the same ceiling to 0.01


@dataclass(frozen=True)
class Ceiling:
    """Args:
    tau: expected tau of a perfect model.
    standard_error: of `tau`, from the draws of the truth and from how well the repeats tell the noise.
    noise: standard deviation of one measurement, pooled from all repeats, in the unit of the targets.
    """

    tau: float
    standard_error: float
    noise: float


@dataclass(frozen=True)
class _Measured:
    """The distinct configurations of a graph: mean and number of their measurements, and the sum of the squared
    distances of these from the mean."""

    means: Float64[np.ndarray, " distinct"]
    counts: Int64[np.ndarray, " distinct"]
    squares: Float64[np.ndarray, " distinct"]


def noise_ceiling(
    graph: Graph | SegmentedGraph, configs: Int64[np.ndarray, " chosen"] | None = None, draws: int = 10, seed: int = 0
) -> Ceiling:
    """The tau that the true mean runtimes would reach against the targets of `graph`.

    The noise is normal, with a variance pooled from the repeats of configurations with about the same runtime. It is
    not relative to the runtime: on the 38,134 runs of AlexNet in TpuGraphs the standard deviation of a run falls from
    40 to 15 microseconds while runtimes rise from 80 to 430 ms. Noise added to the measured means would be noise twice,
    and the ceiling too high; therefore the distribution of the true runtimes is deconvolved first, by the iterations of
    Richardson (1972) and Lucy (1974), which are EM for the nonparametric maximum likelihood estimate of Kiefer and
    Wolfowitz (1956). Given that distribution, the truth behind each measured mean is drawn from its posterior
    (empirical Bayes, Robbins 1956), and each draw is scored like a model. The standard error is the spread of the same
    over Bayesian bootstraps of the configurations (Rubin 1981).

    Runtimes that are equal in truth are drawn a little apart, so the ceiling errs by up to .02 upwards where most are.

    Args:
        graph: `counts` and `spreads` hold the repeats if they were merged; else equal configurations are found,
            and the ceiling is that of single runs, since a perfect model scores equal configurations equally.
        configs: configurations that a model is scored on, all by default. The others still inform the noise.
        draws: of the truth, and of the bootstrap; a pair takes a second with 24,000 configurations.

    Raises:
        ValueError: no configuration was measured twice, so the noise is unknown, or targets are placeholders.

    Examples:
        >>> true_ns = np.repeat(np.linspace(1.0, 2.0, 50), 4)  # 50 configurations, each measured four times
        >>> measured_ns = true_ns + np.random.default_rng(0).normal(0, 0.01, 200)
        >>> node, configs = np.zeros((1, 1), np.float32), true_ns.astype(np.float32)[:, None, None]
        >>> graph = Graph(node, np.zeros((2, 0), np.int64), config_nodes=np.array([0]), config_features=configs,
        ...               targets=measured_ns)
        >>> 0.9 < noise_ceiling(graph).tau < 1
        True
    """
    if draws < 2:
        raise ValueError(f"draws is {draws}; a spread takes 2 or more")
    if (graph.targets == 0).all() or not np.isfinite(graph.targets).all():
        raise ValueError(f"graph {graph.name!r} has placeholders for targets; a noise ceiling takes measured runtimes")
    measured, group = _measured(graph)
    chosen = np.arange(len(group)) if configs is None else configs
    repeats = measured.counts - 1
    if not repeats.any():
        raise ValueError(f"graph {graph.name!r} has no configuration measured twice, so its noise is not known")
    rng = np.random.default_rng(seed)

    def tau(posterior: _Posterior) -> float:
        truth = posterior.draw(rng)
        return kendall_tau(truth[group[chosen]], graph.targets[chosen])

    pooled = float(measured.squares.sum() / repeats.sum())
    if not pooled:
        return Ceiling(1.0, 0.0, 0.0)
    posterior = _posterior(measured, np.ones(len(repeats)))
    taus = [tau(posterior) for _ in range(draws)]
    resampled = [tau(_posterior(measured, rng.exponential(size=len(repeats)))) for _ in range(draws)]
    return Ceiling(float(np.mean(taus)), float(np.std(resampled, ddof=1)), pooled**0.5)


def _measured(graph: Graph | SegmentedGraph) -> tuple[_Measured, Int64[np.ndarray, " configs"]]:
    """The distinct configurations, and which of them each configuration of the graph is."""
    if graph.counts.max() > 1:
        group = np.arange(graph.num_configs)
    else:
        group = groups_of_equals(np.asarray(graph.config_features))[1]
    counts = np.bincount(group, graph.counts).astype(np.int64)
    means = np.bincount(group, graph.counts * graph.targets) / counts
    squares = np.bincount(group, graph.counts * (graph.spreads**2 + (graph.targets - means[group]) ** 2))
    return _Measured(means, counts, squares), group


def _deviations(
    measured: _Measured, weights: Float64[np.ndarray, " distinct"]
) -> tuple[float, Float64[np.ndarray, " distinct"]]:
    """Standard deviation of one measurement where it is least, and that of each mean, rounded to powers of STEP."""
    repeats = weights * (measured.counts - 1)
    squares = weights * measured.squares
    repeated = np.flatnonzero(measured.counts > 1)
    repeated = repeated[np.argsort(measured.means[repeated], kind="stable")]
    num_levels = np.clip((measured.counts - 1).sum() // REPEATS_OF_LEVEL, 1, min(LEVELS, len(repeated)))
    levels = np.array_split(repeated, num_levels)
    variances = np.array([squares[level].sum() / repeats[level].sum() for level in levels])
    variances = np.maximum(variances, LEAST * squares.sum() / repeats.sum())
    starts = measured.means[[level[0] for level in levels[1:]]]
    of_means = (variances[np.searchsorted(starts, measured.means, side="right")] / measured.counts) ** 0.5
    return float(variances.min() ** 0.5), STEP ** np.rint(np.log(of_means) / np.log(STEP))


@dataclass(frozen=True)
class _Posterior:
    """Posterior of the true means given the measured ones, on a grid without gaps wider than the noise.

    Attributes:
        density: of true means, on the grid.
        places: of the measured mean of each configuration on the grid.
        widths: of its noise, one standard deviation, in steps of the grid.
    """

    density: Float64[np.ndarray, " grid"]
    places: Int64[np.ndarray, " distinct"]
    widths: Float64[np.ndarray, " distinct"]

    def draw(self, rng: np.random.Generator) -> Float64[np.ndarray, " distinct"]:
        """True means, up to their scale and to those gaps."""
        offsets = np.arange(-_reach(self.widths), _reach(self.widths) + 1)
        truth = np.empty(len(self.places))
        for part in np.array_split(np.arange(len(truth)), -(-len(truth) // 4096)):
            likelihood = np.exp(-((offsets / self.widths[part, None]) ** 2) / 2)
            cumulative = (self.density[self.places[part, None] + offsets] * likelihood).cumsum(axis=1)
            drawn = (cumulative < rng.random((len(part), 1)) * cumulative[:, -1:]).sum(axis=1)
            truth[part] = self.places[part] + offsets[drawn] + rng.uniform(-0.5, 0.5, len(part))
        return truth


def _reach(widths: Float64[np.ndarray, " distinct"]) -> int:
    """Return the largest distance of a true mean from the measured one, in steps of the grid."""
    return int(np.ceil(REACH * widths.max()))


def _posterior(measured: _Measured, weights: Float64[np.ndarray, " distinct"]) -> _Posterior:
    least, deviations = _deviations(measured, weights)
    widths = deviations * BINS / least
    reach = _reach(widths)
    places = np.rint(_without_gaps(measured.means * BINS / least, 2 * reach + 2)).astype(np.int64) + reach
    return _Posterior(_deconvolved(places, widths, weights, reach), places, widths)


def _without_gaps(means: Float64[np.ndarray, " distinct"], widest: int) -> Float64[np.ndarray, " distinct"]:
    """The same from 0 on, neighbours too far apart to be confused moved nearer: it keeps the grid small."""
    order = np.argsort(means, kind="stable")
    moved = np.empty_like(means)
    moved[order] = np.concatenate([[0], np.cumsum(np.minimum(np.diff(means[order]), widest))])
    return moved


def _deconvolved(
    places: Int64[np.ndarray, " distinct"],
    widths: Float64[np.ndarray, " distinct"],
    weights: Float64[np.ndarray, " distinct"],
    reach: int,
) -> Float64[np.ndarray, " grid"]:
    """The distribution on the grid under which the measured means are likeliest, short of fitting their noise.

    EM (Laird 1978): g <- g times the sum over widths w of k_w * (h_w / (k_w * g)), with the histogram h_w of the means
    whose noise is w wide, that normal noise k_w, and * for a convolution.
    """
    size = int(places.max()) + reach + 1
    histograms = [
        (_normal(width), np.bincount(places[widths == width], weights[widths == width], size))
        for width in np.unique(widths)
    ]
    total = np.sum([histogram for _, histogram in histograms], axis=0)
    density = _convolved(total, _normal(float(np.median(widths)))) + 1e-9 * (total > 0)
    for _ in range(ITERATIONS):
        density = density / density.sum()
        update = np.zeros(size)
        for noise, histogram in histograms:
            expected = _convolved(density, noise)
            ratio = np.divide(histogram, expected, out=np.zeros(size), where=(histogram > 0) & (expected > 0))
            update += _convolved(ratio, noise)
        density = density * update
    return density


def _normal(width: float) -> Float64[np.ndarray, " kernel"]:
    """Normal noise on the grid, as far as four standard deviations."""
    reach = int(4 * width + 0.5)
    values = np.exp(-((np.arange(-reach, reach + 1) / width) ** 2) / 2)
    return values / values.sum()


def _convolved(
    values: Float64[np.ndarray, " grid"], kernel: Float64[np.ndarray, " kernel"]
) -> Float64[np.ndarray, " grid"]:
    """Their convolution, nothing beyond the ends: numpy takes a fifth of the time of scipy.ndimage on such a grid."""
    return np.convolve(values, kernel)[len(kernel) // 2 :][: len(values)]
