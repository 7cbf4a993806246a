"""An optimizer of PyTorch whose arithmetic is done by the servers: each step pushes gradients and receives weights."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from pswire import optimizers
from pswire.errors import ConfigurationError
from pswire.tensors.values import Array, IndexedSlices
from psworker.model.collection import context, variable_scope
from psworker.sessions.session import session_here
from psworker.torch.early_gradients import EarlyGradients
from psworker.torch.embedding import embeddings
from psworker.torch.layer_variables import Named, Place, places
from psworker.torch.losses import note_backward, take_loss
from psworker.torch.parameters import SharedTensor, receive, set_all, shared_buffers, shared_tensors
from psworker.torch.update_rules import Rule, penalty, update_rule


def distribute(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module,
    name: str | None = None,
    *,
    variables: Mapping[str, Named] | None = None,
    rule: Rule | None = None,
    early: bool = False,
) -> "DistributedOptimizer":
    """The optimizer in the open session: its arithmetic moves to the servers, with its state.

        optimizer = pst.distribute(torch.optim.Adam(model.parameters(), lr=1e-3), model)

    All parameters and persistent buffers of the model become variables, named as in `model.state_dict()`; those that
    the servers have already get their values, in the parameters' own memory. Frozen parameters are not trained.
    Buffers, such as running means, stay each worker's own; `save_buffers` sends the present worker's to the servers.

    Hyperparameters that change later, as by a learning rate scheduler, are sent by the chief with its next step. With
    local steps the optimizer may be any: it runs in this worker, and the servers get the difference of a round.

    Args:
        optimizer: its groups have the parameters that are trained.
        model: the module that has them all.
        name: in programs with several models, of this one; it comes before those of its variables, as in
            `generator/0.weight`.
        variables: names of variables by parameter, with axes if their order differs, for jobs with workers of other
            libraries: `{"fc.weight": ("fc/kernel", (1, 0))}`, or `pst.layer_variables(model)`. Others keep their names.
        rule: makes the servers' optimizer of a parameter group, such as one of your own (`psworker.CustomOptimizer`):
            `lambda group: Lion(group["lr"])`. It gets the gradients without weight decay. By default that of the
            optimizer's class.
        early: gradients travel to the servers while the backward pass goes on, where that is possible (direct
            connections; docs/pytorch.md); elsewhere, and for steps whose gradients are changed after it, with `step`.

    Raises:
        ConfigurationError: no session is open; the servers have no such rule; a parameter is not the model's.
        TypeError: `rule` makes no optimizer of the servers.
    """
    return DistributedOptimizer(optimizer, model, name, variables, rule, early=early)


class DistributedOptimizer(torch.optim.Optimizer):
    """An optimizer whose `step` pushes the gradients. Made by `distribute`; parameter groups are those of `inner`."""

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        model: torch.nn.Module,
        name: str | None = None,
        variables: Mapping[str, Named] | None = None,
        rule: Rule | None = None,
        *,
        early: bool = False,
    ) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, inner.defaults)  # the same groups, for schedulers
        self._session = session_here("distribute the optimizer inside `with pst.session():`")
        self._rule = rule
        self._sent = [update_rule(inner, group, rule) for group in self.param_groups if not self._runs_here]
        names, shared = _names(self.param_groups, model), places(model, variables or {})
        _check_free(shared.values(), f"{name}/" if name else "")
        with variable_scope(name) if name else nullcontext():
            self._tensors, self._buffers = shared_tensors(model, shared), shared_buffers(model, shared)
            self._tables = [(one, one.make_table(shared[label].name)) for label, one in embeddings(model).items()]
        self._groups = [[self._tensors[label] for label in group] for group in names]
        self._by_name = {one.variable.name: one for one in self._tensors.values()}
        set_all([*self._tensors.values(), *self._buffers.values()])
        #: By variable, the rules that the first push has declared, with the hyperparameters of that moment.
        self._declared: dict[str, optimizers.OptimizerSpec] = {}
        tensors = *self._tensors.values(), *self._buffers.values()
        mirrored = [*[one.variable for one in tensors], *[table for _, table in self._tables]]
        self._early: EarlyGradients | None = None
        if early and not self._runs_here and not self._tables:
            pairs = zip(self.param_groups, self._groups, strict=True)
            gradients = {one: partial(self._gradient, one, group) for group, tensors in pairs for one in tensors}
            self._early = EarlyGradients(self._session, gradients, self._tune)
        end = None if self._early is None else self._early.close
        self._session.mirror(mirrored, lambda values: receive(self._by_name, values), end)
        note_backward()
        take_loss()

    @property
    def _runs_here(self) -> bool:
        """Whether the optimizer runs in this worker, and servers get the difference of a round."""
        return self._session.local_steps > 0

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401 - as PyTorch's
        """Pushes the gradients of all parameters; returns with the fresh weights in the parameters.

        Args:
            closure: computes the loss and its gradients, and is called once; its result is returned.

        Raises:
            NotFinite: a gradient has NaN or infinity; nothing is applied.
            ParamServerError: a server's refusal, or a server that cannot be reached in time.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        with torch.no_grad():
            if self._runs_here:
                self._step_here()
            else:
                self._push()
        return result

    def save_buffers(self) -> None:
        """Sends this worker's buffers, such as running means, to the servers, as for `session.save` after it."""
        self._session.assign_all({one.variable: one.present() for one in self._buffers.values()})

    def state_dict(self) -> dict[str, Any]:
        """The groups and, as `inner` has it, the state; the state of a distributed optimizer is on the servers."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Sets the groups' hyperparameters; servers keep their state in checkpoints (docs/checkpoints.md)."""
        self.inner.load_state_dict(dict(state_dict))
        for mine, theirs in zip(self.param_groups, self.inner.param_groups, strict=True):
            mine.update({name: value for name, value in theirs.items() if name != "params"})

    def _push(self) -> None:
        self._tune()
        if not self._declared:
            self._declared = {table.name: self._sent[0] for _, table in self._tables}
            for spec, tensors in zip(self._sent, self._groups, strict=True):
                self._declared |= {one.variable.name: spec for one in tensors}
        pairs: list[Any] = []
        for group, tensors in zip(self.param_groups, self._groups, strict=True):
            for one in tensors:
                gradient = self._gradient(one, group)
                if gradient is not None:
                    pairs.append((gradient, one.variable))
        for embedding, table in self._tables:
            rows = embedding.take_gradient()
            if rows is not None:
                pairs.append((rows, table))
        loss = take_loss()
        if loss is not None:
            self._session.note_loss(loss, [variable for _, variable in pairs])
        if pairs:
            self._session.push(self._declared.__getitem__, pairs)
        if self._early is not None:
            self._early.end_step()

    def _gradient(self, one: SharedTensor, group: Mapping[str, Any]) -> Array | IndexedSlices | None:
        return one.gradient(penalty(self.inner, group, self._rule), negative=bool(group.get("maximize")))

    def _tune(self) -> None:
        """Sends hyperparameters that have changed since the last step."""
        for number, (group, tensors) in enumerate(zip(self.param_groups, self._groups, strict=True)):
            spec, before = update_rule(self.inner, group, self._rule), self._sent[number]
            if spec == before:
                continue
            self._sent[number] = spec
            if self._declared and self._session.is_chief:
                changes = {name: value for name, value in vars(spec).items() if getattr(before, name) != value}
                self._session.set_hyperparameters([one.variable for one in tensors], **changes)

    def _step_here(self) -> None:
        self.inner.step()
        trained = [one for tensors in self._groups for one in tensors if one.tensor.requires_grad]
        self._session.step_outside({one.variable: one.present() for one in trained}, take_loss())


def _names(groups: Iterable[Mapping[str, Any]], model: torch.nn.Module) -> list[list[str]]:
    """The names of each group's parameters. Raises `ConfigurationError`."""
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    missing = [tuple(one.shape) for group in groups for one in group["params"] if id(one) not in known]
    if missing:
        raise ConfigurationError(
            f"the optimizer has parameters that the model does not have, of shape {', '.join(map(str, missing))}: give "
            "distribute the model that has them all, such as torch.nn.ModuleList([encoder, decoder])"
        )
    return [[known[id(one)] for one in group["params"]] for group in groups]


def _check_free(places: Iterable[Place], scope: str) -> None:
    taken = [one.name for one in places if scope + one.name in context.collection.variables]
    if taken:
        raise ConfigurationError(
            f"the open session has a variable {scope + taken[0]!r} already: give each of several models a name, as in "
            'pst.distribute(optimizer, model, name="generator")'
        )
