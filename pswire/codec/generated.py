"""Messages into protobuf, and out of it, checked: a `put_` and a `get_` function for each.

Written by `make protos` from protos/pswire/v1; do not edit. A `get_` function raises `Malformed` and nothing else.
"""

from operator import attrgetter
from typing import Any

from pswire import limits
from pswire import messages as ms
from pswire.codec import checks as check
from pswire.codec.checks import Row
from pswire.codec.tensors import (
    get_assignment,
    get_choice,
    get_declaration,
    get_gradient,
    get_operation,
    get_optimizer,
    get_part,
    get_row_initializer,
    get_served_state,
    get_spec,
    get_value,
    put_assignment,
    put_choice,
    put_declaration,
    put_gradient,
    put_operation,
    put_optimizer,
    put_part,
    put_row_initializer,
    put_served_state,
    put_spec,
    put_value,
)
from pswire.errors import Malformed
from pswire.limits import MAX_NUMBER
from pswire.tensors.transport import TensorReceiver, TensorSender
from pswire.v1 import paramserver_pb2 as pb
from pswire.v1 import state_pb2 as spb

_NUMBERS: dict[ms.Outcome, Any] = {one: pb.Outcome.Value(f"OUTCOME_{one.name}") for one in ms.Outcome}
_OUTCOMES = {number: one for one, number in _NUMBERS.items()}


def outcome(value: int, where: str) -> ms.Outcome:
    """The outcome of a number."""
    if value not in _OUTCOMES:
        raise Malformed(f"{where} cannot be {value}")
    return _OUTCOMES[value]


def put_job(message: ms.Job, proto: pb.Job, tensors: TensorSender) -> None:
    proto.number = message.number
    proto.name = message.name
    proto.session = message.session


def get_job(proto: pb.Job, tensors: TensorReceiver) -> ms.Job:
    try:
        return ms.Job(
            number=n if 0 <= (n := proto.number) <= MAX_NUMBER else check.count(n, "Job.number"),
            name=proto.name and check.name_or_empty(proto.name, "Job.name"),
            session=n if 0 <= (n := proto.session) <= MAX_NUMBER else check.count(n, "Job.session"),
        )
    except ValueError as error:
        raise Malformed(str(error)) from error


def put_join_request(message: ms.Join, proto: pb.JoinRequest, tensors: TensorSender) -> None:
    proto.worker = message.worker
    proto.incarnation = message.incarnation
    proto.shard = message.shard
    proto.shards = message.shards
    proto.process_nonce = message.process_nonce
    proto.tensor_transport = message.tensor_transport
    proto.states.extend(message.states)
    proto.timeline = message.timeline
    proto.steps = message.steps
    proto.settled = message.settled
    put_job(message.job, proto.job, tensors)
    proto.resume = message.resume
    proto.program = message.program
    proto.cut = message.cut
    proto.name_key = message.name_key
    proto.workers = message.workers


def get_join_request(proto: pb.JoinRequest, tensors: TensorReceiver) -> ms.Join:
    return ms.Join(
        worker=check.name(proto.worker),
        incarnation=n if 0 <= (n := proto.incarnation) <= MAX_NUMBER else check.count(n, "JoinRequest.incarnation"),
        shard=check.below(proto.shard, proto.shards, "JoinRequest.shard", "shards"),
        shards=n if 1 <= (n := proto.shards) <= MAX_NUMBER else check.positive(n, "JoinRequest.shards"),
        process_nonce=check.count(proto.process_nonce, "JoinRequest.process_nonce", check.LARGEST),
        tensor_transport=proto.tensor_transport and check.label(proto.tensor_transport, "JoinRequest.tensor_transport"),
        states=check.numbers(proto.states, "JoinRequest.states", limits.MAX_SHARDS, most=check.LARGEST)
        if proto.states
        else (),
        timeline=n if 0 <= (n := proto.timeline) <= MAX_NUMBER else check.count(n, "JoinRequest.timeline"),
        steps=n if 0 <= (n := proto.steps) <= MAX_NUMBER else check.count(n, "JoinRequest.steps"),
        settled=n if 0 <= (n := proto.settled) <= MAX_NUMBER else check.count(n, "JoinRequest.settled"),
        job=get_job(proto.job, tensors),
        resume=proto.resume,
        program=proto.program and check.name_or_empty(proto.program, "JoinRequest.program"),
        cut=n if 0 <= (n := proto.cut) <= MAX_NUMBER else check.count(n, "JoinRequest.cut"),
        name_key=check.secret(proto.name_key, "JoinRequest.name_key"),
        workers=n if 0 <= (n := proto.workers) <= MAX_NUMBER else check.count(n, "JoinRequest.workers"),
    )


def put_direct_address(message: ms.DirectAddress, proto: pb.DirectAddress, tensors: TensorSender) -> None:
    proto.port = message.port
    proto.socket = message.socket


def get_direct_address(proto: pb.DirectAddress, tensors: TensorReceiver) -> ms.DirectAddress:
    return ms.DirectAddress(
        port=check.count(proto.port, "DirectAddress.port", limits.MAX_PORT),
        socket=proto.socket and check.answer_text(proto.socket, "DirectAddress.socket"),
    )


def put_join_reply(message: ms.Joined, proto: pb.JoinReply, tensors: TensorSender) -> None:
    proto.incarnation = message.incarnation
    proto.number = message.number
    proto.lease = message.lease
    proto.global_step = message.global_step
    proto.consistency = message.consistency
    proto.staleness = message.staleness
    proto.chief = message.chief
    proto.state = message.state
    proto.timeline = message.timeline
    proto.cut = message.cut
    proto.steps = message.steps
    put_job(message.job, proto.job, tensors)
    proto.note = message.note
    proto.stopped = message.stopped
    proto.token = message.token
    if message.direct is not None:
        proto.direct.SetInParent()
        put_direct_address(message.direct, proto.direct, tensors)


def get_join_reply(proto: pb.JoinReply, tensors: TensorReceiver) -> ms.Joined:
    return ms.Joined(
        incarnation=n if 0 <= (n := proto.incarnation) <= MAX_NUMBER else check.count(n, "JoinReply.incarnation"),
        number=n if 0 <= (n := proto.number) <= MAX_NUMBER else check.count(n, "JoinReply.number"),
        lease=check.amount(proto.lease, "JoinReply.lease", 0.001),
        global_step=n if 0 <= (n := proto.global_step) <= MAX_NUMBER else check.count(n, "JoinReply.global_step"),
        consistency=proto.consistency and check.answer_text(proto.consistency, "JoinReply.consistency"),
        staleness=proto.staleness and check.answer_text(proto.staleness, "JoinReply.staleness"),
        chief=proto.chief,
        state=check.count(proto.state, "JoinReply.state", check.LARGEST),
        timeline=n if 0 <= (n := proto.timeline) <= MAX_NUMBER else check.count(n, "JoinReply.timeline"),
        cut=n if 0 <= (n := proto.cut) <= MAX_NUMBER else check.count(n, "JoinReply.cut"),
        steps=n if 0 <= (n := proto.steps) <= MAX_NUMBER else check.count(n, "JoinReply.steps"),
        job=get_job(proto.job, tensors),
        note=proto.note and check.answer_text(proto.note, "JoinReply.note"),
        stopped=proto.stopped and check.answer_text(proto.stopped, "JoinReply.stopped"),
        token=check.secret(proto.token, "JoinReply.token"),
        direct=get_direct_address(proto.direct, tensors) if proto.HasField("direct") else None,
    )


def put_sender(message: ms.Sender, proto: pb.Sender, tensors: TensorSender) -> None:
    proto.worker = message.worker
    proto.incarnation = message.incarnation


def get_sender(proto: pb.Sender, tensors: TensorReceiver) -> ms.Sender:
    return ms.Sender(
        worker=check.name(proto.worker),
        incarnation=n if 0 <= (n := proto.incarnation) <= MAX_NUMBER else check.count(n, "Sender.incarnation"),
    )


def put_renew_request(message: ms.Renew, proto: pb.RenewRequest, tensors: TensorSender) -> None:
    put_sender(message.sender, proto.sender, tensors)
    proto.idle = message.idle
    proto.tensor_transport = message.tensor_transport
    proto.settled = message.settled
    proto.half_pushes = message.half_pushes
    proto.cut = message.cut
    proto.written_by_all = message.written_by_all
    proto.timeline = message.timeline


def get_renew_request(proto: pb.RenewRequest, tensors: TensorReceiver) -> ms.Renew:
    return ms.Renew(
        sender=get_sender(proto.sender, tensors),
        idle=proto.idle,
        tensor_transport=proto.tensor_transport
        and check.label(proto.tensor_transport, "RenewRequest.tensor_transport"),
        settled=n if 0 <= (n := proto.settled) <= MAX_NUMBER else check.count(n, "RenewRequest.settled"),
        half_pushes=n if 0 <= (n := proto.half_pushes) <= MAX_NUMBER else check.count(n, "RenewRequest.half_pushes"),
        cut=n if 0 <= (n := proto.cut) <= MAX_NUMBER else check.count(n, "RenewRequest.cut"),
        written_by_all=n
        if 0 <= (n := proto.written_by_all) <= MAX_NUMBER
        else check.count(n, "RenewRequest.written_by_all"),
        timeline=n if 0 <= (n := proto.timeline) <= MAX_NUMBER else check.count(n, "RenewRequest.timeline"),
    )


def put_renew_reply(message: ms.Renewed, proto: pb.RenewReply, tensors: TensorSender) -> None:
    proto.global_step = message.global_step
    proto.waiting_for = message.waiting_for
    proto.chief = message.chief
    proto.cut = message.cut
    proto.written.extend(message.written)
    proto.stopped = message.stopped
    proto.push_held = message.push_held
    if message.direct is not None:
        proto.direct.SetInParent()
        put_direct_address(message.direct, proto.direct, tensors)


def get_renew_reply(proto: pb.RenewReply, tensors: TensorReceiver) -> ms.Renewed:
    return ms.Renewed(
        global_step=n if 0 <= (n := proto.global_step) <= MAX_NUMBER else check.count(n, "RenewReply.global_step"),
        waiting_for=proto.waiting_for and check.answer_text(proto.waiting_for, "RenewReply.waiting_for"),
        chief=proto.chief,
        cut=n if 0 <= (n := proto.cut) <= MAX_NUMBER else check.count(n, "RenewReply.cut"),
        written=check.numbers(proto.written, "RenewReply.written", limits.MAX_SHARDS) if proto.written else (),
        stopped=proto.stopped and check.answer_text(proto.stopped, "RenewReply.stopped"),
        push_held=proto.push_held,
        direct=get_direct_address(proto.direct, tensors) if proto.HasField("direct") else None,
    )


def put_leave_request(message: ms.Leave, proto: pb.LeaveRequest, tensors: TensorSender) -> None:
    put_sender(message.sender, proto.sender, tensors)
    proto.failed = message.failed
    proto.done = message.done


def get_leave_request(proto: pb.LeaveRequest, tensors: TensorReceiver) -> ms.Leave:
    return ms.Leave(
        sender=get_sender(proto.sender, tensors),
        failed=proto.failed,
        done=proto.done,
    )


def put_leave_reply(message: ms.Left, proto: pb.LeaveReply, tensors: TensorSender) -> None:
    proto.done = message.done


def get_leave_reply(proto: pb.LeaveReply, tensors: TensorReceiver) -> ms.Left:
    return ms.Left(
        done=proto.done,
    )


def put_place(message: ms.Place, proto: pb.Place, tensors: TensorSender) -> None:
    proto.name = message.name
    proto.shard = message.shard


def get_place(proto: pb.Place, tensors: TensorReceiver) -> ms.Place:
    return ms.Place(
        name=check.name(proto.name),
        shard=n if 0 <= (n := proto.shard) <= MAX_NUMBER else check.count(n, "Place.shard"),
    )


def put_register_request(message: ms.Register, proto: pb.RegisterRequest, tensors: TensorSender) -> None:
    put_sender(message.sender, proto.sender, tensors)
    for declaration in message.declarations:
        put_declaration(declaration, proto.declarations.add(), tensors)
    for place in message.places:
        put_place(place, proto.places.add(), tensors)
    proto.dry_run = message.dry_run
    proto.states.extend(message.states)
    proto.cut = message.cut


def get_register_request(proto: pb.RegisterRequest, tensors: TensorReceiver) -> ms.Register:
    return ms.Register(
        sender=get_sender(proto.sender, tensors),
        declarations=check.parts(
            proto.declarations,
            get_declaration,
            tensors,
            "RegisterRequest.declarations",
            limits.MAX_ENTRIES,
            attrgetter("spec.name"),
        )
        if proto.declarations
        else (),
        places=check.parts(proto.places, get_place, tensors, "RegisterRequest.places", limits.MAX_ENTRIES)
        if proto.places
        else (),
        dry_run=proto.dry_run,
        states=check.numbers(proto.states, "RegisterRequest.states", limits.MAX_SHARDS, most=check.LARGEST)
        if proto.states
        else (),
        cut=n if 0 <= (n := proto.cut) <= MAX_NUMBER else check.count(n, "RegisterRequest.cut"),
    )


def put_change_id(message: ms.ChangeId, proto: pb.ChangeId, tensors: TensorSender) -> None:
    put_sender(message.sender, proto.sender, tensors)
    proto.sequence = message.sequence
    proto.shards.extend(message.shards)


def get_change_id(proto: pb.ChangeId, tensors: TensorReceiver) -> ms.ChangeId:
    return ms.ChangeId(
        sender=get_sender(proto.sender, tensors),
        sequence=n if 1 <= (n := proto.sequence) <= MAX_NUMBER else check.positive(n, "ChangeId.sequence"),
        shards=check.numbers(proto.shards, "ChangeId.shards", limits.MAX_SHARDS) if proto.shards else (),
    )


def put_frontier(message: ms.Frontier, proto: pb.Frontier, tensors: TensorSender) -> None:
    proto.decided = message.decided
    for change_id in message.undelivered:
        put_change_id(change_id, proto.undelivered.add(), tensors)


def get_frontier(proto: pb.Frontier, tensors: TensorReceiver) -> ms.Frontier:
    return ms.Frontier(
        decided=n if 0 <= (n := proto.decided) <= MAX_NUMBER else check.count(n, "Frontier.decided"),
        undelivered=check.parts(
            proto.undelivered,
            get_change_id,
            tensors,
            "Frontier.undelivered",
            limits.MAX_LISTED,
            attrgetter("sender.worker"),
            total="shards",
        )
        if proto.undelivered
        else (),
    )


def put_register_reply(message: ms.Registered, proto: pb.RegisterReply, tensors: TensorSender) -> None:
    for value in message.values:
        put_value(value, proto.values.add(), tensors)
    proto.global_step = message.global_step
    if message.frontier is not None:
        proto.frontier.SetInParent()
        put_frontier(message.frontier, proto.frontier, tensors)
    proto.behind.extend(message.behind)


def get_register_reply(proto: pb.RegisterReply, tensors: TensorReceiver) -> ms.Registered:
    return ms.Registered(
        values=check.parts(
            proto.values, get_value, tensors, "RegisterReply.values", limits.MAX_ENTRIES, attrgetter("name")
        )
        if proto.values
        else (),
        global_step=n if 0 <= (n := proto.global_step) <= MAX_NUMBER else check.count(n, "RegisterReply.global_step"),
        frontier=get_frontier(proto.frontier, tensors) if proto.HasField("frontier") else None,
        behind=check.names(proto.behind, "RegisterReply.behind", limits.MAX_ENTRIES) if proto.behind else (),
    )


def put_pull_request(message: ms.Pull, proto: pb.PullRequest, tensors: TensorSender) -> None:
    put_sender(message.sender, proto.sender, tensors)
    proto.names.extend(message.names)
    for choice in message.choices:
        put_choice(choice, proto.choices.add(), tensors)
    proto.known_versions.extend(message.known_versions)
    proto.encoding = message.encoding
    for change_id in message.after:
        put_change_id(change_id, proto.after.add(), tensors)
    proto.of_cut = message.of_cut


def get_pull_request(proto: pb.PullRequest, tensors: TensorReceiver) -> ms.Pull:
    return ms.Pull(
        sender=get_sender(proto.sender, tensors),
        names=check.names(proto.names, "PullRequest.names", limits.MAX_ENTRIES) if proto.names else (),
        choices=check.parts(proto.choices, get_choice, tensors, "PullRequest.choices", limits.MAX_CHOICES)
        if proto.choices
        else (),
        known_versions=check.numbers(proto.known_versions, "PullRequest.known_versions", limits.MAX_ENTRIES, least=-1)
        if proto.known_versions
        else (),
        encoding=proto.encoding and check.encoding(proto.encoding, "PullRequest.encoding"),
        after=check.parts(
            proto.after,
            get_change_id,
            tensors,
            "PullRequest.after",
            limits.MAX_LISTED,
            attrgetter("sender.worker"),
            total="shards",
        )
        if proto.after
        else (),
        of_cut=n if 0 <= (n := proto.of_cut) <= MAX_NUMBER else check.count(n, "PullRequest.of_cut"),
    )


def put_pull_reply(message: ms.Pulled, proto: pb.PullReply, tensors: TensorSender) -> None:
    for value in message.values:
        put_value(value, proto.values.add(), tensors)
    proto.global_step = message.global_step
    if message.frontier is not None:
        proto.frontier.SetInParent()
        put_frontier(message.frontier, proto.frontier, tensors)


def get_pull_reply(proto: pb.PullReply, tensors: TensorReceiver) -> ms.Pulled:
    return ms.Pulled(
        values=check.parts(proto.values, get_value, tensors, "PullReply.values", limits.MAX_VALUES)
        if proto.values
        else (),
        global_step=n if 0 <= (n := proto.global_step) <= MAX_NUMBER else check.count(n, "PullReply.global_step"),
        frontier=get_frontier(proto.frontier, tensors) if proto.HasField("frontier") else None,
    )


def put_update_group(message: ms.UpdateGroup, proto: pb.UpdateGroup, tensors: TensorSender) -> None:
    proto.number = message.number
    for change_id in message.members:
        put_change_id(change_id, proto.members.add(), tensors)
    proto.pushes = message.pushes


def get_update_group(proto: pb.UpdateGroup, tensors: TensorReceiver) -> ms.UpdateGroup:
    return ms.UpdateGroup(
        number=n if 0 <= (n := proto.number) <= MAX_NUMBER else check.count(n, "UpdateGroup.number"),
        members=check.parts(
            proto.members,
            get_change_id,
            tensors,
            "UpdateGroup.members",
            limits.MAX_LISTED,
            attrgetter("sender.worker"),
            total="shards",
        )
        if proto.members
        else (),
        pushes=n if 0 <= (n := proto.pushes) <= MAX_NUMBER else check.count(n, "UpdateGroup.pushes"),
    )


def put_remote_weights(message: ms.RemoteWeights, proto: pb.RemoteWeights, tensors: TensorSender) -> None:
    proto.name = message.name
    proto.served_at = message.served_at


def get_remote_weights(proto: pb.RemoteWeights, tensors: TensorReceiver) -> ms.RemoteWeights:
    return ms.RemoteWeights(
        name=check.name(proto.name),
        served_at=n if 0 <= (n := proto.served_at) <= MAX_NUMBER else check.count(n, "RemoteWeights.served_at"),
    )


def put_progress(message: ms.Progress, proto: pb.Progress, tensors: TensorSender) -> None:
    proto.queue = message.queue
    proto.block = message.block
    proto.position = message.position
    if message.cost_sum is not None:
        proto.cost_sum = message.cost_sum


def get_progress(proto: pb.Progress, tensors: TensorReceiver) -> ms.Progress:
    return ms.Progress(
        queue=check.name(proto.queue),
        block=n if 0 <= (n := proto.block) <= MAX_NUMBER else check.count(n, "Progress.block"),
        position=n if 1 <= (n := proto.position) <= MAX_NUMBER else check.positive(n, "Progress.position"),
        cost_sum=proto.cost_sum if proto.HasField("cost_sum") else None,
    )


def put_push_request(message: ms.Push, proto: pb.PushRequest, tensors: TensorSender) -> None:
    put_sender(message.sender, proto.sender, tensors)
    proto.sequence = message.sequence
    for gradient in message.gradients:
        put_gradient(gradient, proto.gradients.add(), tensors)
    if message.loss is not None:
        proto.loss = message.loss
    proto.pull.extend(message.pull)
    if message.group is not None:
        proto.group.SetInParent()
        put_update_group(message.group, proto.group, tensors)
    proto.known_versions.extend(message.known_versions)
    proto.encoding = message.encoding
    proto.shards.extend(message.shards)
    for remote_weights in message.remote:
        put_remote_weights(remote_weights, proto.remote.add(), tensors)
    for change_id in message.after:
        put_change_id(change_id, proto.after.add(), tensors)
    proto.global_step = message.global_step
    proto.cut = message.cut
    for progress in message.progress:
        put_progress(progress, proto.progress.add(), tensors)


def get_push_request(proto: pb.PushRequest, tensors: TensorReceiver) -> ms.Push:
    return ms.Push(
        sender=get_sender(proto.sender, tensors),
        sequence=n if 1 <= (n := proto.sequence) <= MAX_NUMBER else check.positive(n, "PushRequest.sequence"),
        gradients=check.parts(
            proto.gradients, get_gradient, tensors, "PushRequest.gradients", limits.MAX_ENTRIES, attrgetter("name")
        )
        if proto.gradients
        else (),
        loss=proto.loss if proto.HasField("loss") else None,
        pull=check.names(proto.pull, "PushRequest.pull", limits.MAX_ENTRIES) if proto.pull else (),
        group=get_update_group(proto.group, tensors) if proto.HasField("group") else None,
        known_versions=check.numbers(proto.known_versions, "PushRequest.known_versions", limits.MAX_ENTRIES, least=-1)
        if proto.known_versions
        else (),
        encoding=proto.encoding and check.encoding(proto.encoding, "PushRequest.encoding"),
        shards=check.numbers(proto.shards, "PushRequest.shards", limits.MAX_SHARDS) if proto.shards else (),
        remote=check.parts(
            proto.remote, get_remote_weights, tensors, "PushRequest.remote", limits.MAX_ENTRIES, attrgetter("name")
        )
        if proto.remote
        else (),
        after=check.parts(
            proto.after,
            get_change_id,
            tensors,
            "PushRequest.after",
            limits.MAX_LISTED,
            attrgetter("sender.worker"),
            total="shards",
        )
        if proto.after
        else (),
        global_step=n if 0 <= (n := proto.global_step) <= MAX_NUMBER else check.count(n, "PushRequest.global_step"),
        cut=n if 0 <= (n := proto.cut) <= MAX_NUMBER else check.count(n, "PushRequest.cut"),
        progress=check.parts(
            proto.progress, get_progress, tensors, "PushRequest.progress", limits.MAX_LISTED, attrgetter("queue")
        )
        if proto.progress
        else (),
    )


def put_push_reply(message: ms.Pushed, proto: pb.PushReply, tensors: TensorSender) -> None:
    proto.outcome = _NUMBERS[message.outcome]
    proto.staleness = message.staleness
    proto.global_step = message.global_step
    for value in message.values:
        put_value(value, proto.values.add(), tensors)
    proto.reason = message.reason
    if message.group is not None:
        proto.group.SetInParent()
        put_update_group(message.group, proto.group, tensors)
    if message.frontier is not None:
        proto.frontier.SetInParent()
        put_frontier(message.frontier, proto.frontier, tensors)
    proto.cut = message.cut


def get_push_reply(proto: pb.PushReply, tensors: TensorReceiver) -> ms.Pushed:
    return ms.Pushed(
        outcome=outcome(proto.outcome, "PushReply.outcome"),
        staleness=n if 0 <= (n := proto.staleness) <= MAX_NUMBER else check.count(n, "PushReply.staleness"),
        global_step=n if 0 <= (n := proto.global_step) <= MAX_NUMBER else check.count(n, "PushReply.global_step"),
        values=check.parts(proto.values, get_value, tensors, "PushReply.values", limits.MAX_ENTRIES, attrgetter("name"))
        if proto.values
        else (),
        reason=proto.reason and check.answer_text(proto.reason, "PushReply.reason"),
        group=get_update_group(proto.group, tensors) if proto.HasField("group") else None,
        frontier=get_frontier(proto.frontier, tensors) if proto.HasField("frontier") else None,
        cut=n if 0 <= (n := proto.cut) <= MAX_NUMBER else check.count(n, "PushReply.cut"),
    )


def put_counted_portions(message: ms.CountedPortions, proto: pb.CountedPortions, tensors: TensorSender) -> None:
    proto.name = message.name
    proto.evaluation = message.evaluation
    proto.numbers.extend(message.numbers)


def get_counted_portions(proto: pb.CountedPortions, tensors: TensorReceiver) -> ms.CountedPortions:
    return ms.CountedPortions(
        name=check.name(proto.name),
        evaluation=n if 1 <= (n := proto.evaluation) <= MAX_NUMBER else check.positive(n, "CountedPortions.evaluation"),
        numbers=check.numbers(proto.numbers, "CountedPortions.numbers", limits.MAX_ENTRIES) if proto.numbers else (),
    )


def put_assign_request(message: ms.Assign, proto: pb.AssignRequest, tensors: TensorSender) -> None:
    put_sender(message.sender, proto.sender, tensors)
    proto.sequence = message.sequence
    for assignment in message.assignments:
        put_assignment(assignment, proto.assignments.add(), tensors)
    proto.add = message.add
    proto.shards.extend(message.shards)
    proto.remote.extend(message.remote)
    for change_id in message.after:
        put_change_id(change_id, proto.after.add(), tensors)
    proto.cut = message.cut
    if message.portions is not None:
        proto.portions.SetInParent()
        put_counted_portions(message.portions, proto.portions, tensors)


def get_assign_request(proto: pb.AssignRequest, tensors: TensorReceiver) -> ms.Assign:
    return ms.Assign(
        sender=get_sender(proto.sender, tensors),
        sequence=n if 1 <= (n := proto.sequence) <= MAX_NUMBER else check.positive(n, "AssignRequest.sequence"),
        assignments=check.parts(
            proto.assignments,
            get_assignment,
            tensors,
            "AssignRequest.assignments",
            limits.MAX_ENTRIES,
            attrgetter("name"),
        )
        if proto.assignments
        else (),
        add=proto.add,
        shards=check.numbers(proto.shards, "AssignRequest.shards", limits.MAX_SHARDS) if proto.shards else (),
        remote=check.names(proto.remote, "AssignRequest.remote", limits.MAX_ENTRIES) if proto.remote else (),
        after=check.parts(
            proto.after,
            get_change_id,
            tensors,
            "AssignRequest.after",
            limits.MAX_LISTED,
            attrgetter("sender.worker"),
            total="shards",
        )
        if proto.after
        else (),
        cut=n if 0 <= (n := proto.cut) <= MAX_NUMBER else check.count(n, "AssignRequest.cut"),
        portions=get_counted_portions(proto.portions, tensors) if proto.HasField("portions") else None,
    )


def put_assign_reply(message: ms.Assigned, proto: pb.AssignReply, tensors: TensorSender) -> None:
    proto.outcome = _NUMBERS[message.outcome]
    proto.versions.extend(message.versions)
    proto.global_step = message.global_step
    if message.frontier is not None:
        proto.frontier.SetInParent()
        put_frontier(message.frontier, proto.frontier, tensors)
    proto.reason = message.reason


def get_assign_reply(proto: pb.AssignReply, tensors: TensorReceiver) -> ms.Assigned:
    return ms.Assigned(
        outcome=outcome(proto.outcome, "AssignReply.outcome"),
        versions=check.numbers(proto.versions, "AssignReply.versions", limits.MAX_ENTRIES) if proto.versions else (),
        global_step=n if 0 <= (n := proto.global_step) <= MAX_NUMBER else check.count(n, "AssignReply.global_step"),
        frontier=get_frontier(proto.frontier, tensors) if proto.HasField("frontier") else None,
        reason=proto.reason and check.answer_text(proto.reason, "AssignReply.reason"),
    )


def put_tune_request(message: ms.Tune, proto: pb.TuneRequest, tensors: TensorSender) -> None:
    put_sender(message.sender, proto.sender, tensors)
    proto.sequence = message.sequence
    proto.names.extend(message.names)
    put_optimizer(message.optimizer, proto.optimizer, tensors)
    proto.fields.extend(message.fields)
    proto.cut = message.cut


def get_tune_request(proto: pb.TuneRequest, tensors: TensorReceiver) -> ms.Tune:
    return ms.Tune(
        sender=get_sender(proto.sender, tensors),
        sequence=n if 1 <= (n := proto.sequence) <= MAX_NUMBER else check.positive(n, "TuneRequest.sequence"),
        names=check.names(proto.names, "TuneRequest.names", limits.MAX_ENTRIES) if proto.names else (),
        optimizer=get_optimizer(proto.optimizer, tensors),
        fields=check.names(proto.fields, "TuneRequest.fields", limits.MAX_ENTRIES) if proto.fields else (),
        cut=n if 0 <= (n := proto.cut) <= MAX_NUMBER else check.count(n, "TuneRequest.cut"),
    )


def put_tune_reply(message: ms.Tuned, proto: pb.TuneReply, tensors: TensorSender) -> None:
    proto.outcome = _NUMBERS[message.outcome]
    proto.global_step = message.global_step


def get_tune_reply(proto: pb.TuneReply, tensors: TensorReceiver) -> ms.Tuned:
    return ms.Tuned(
        outcome=outcome(proto.outcome, "TuneReply.outcome"),
        global_step=n if 0 <= (n := proto.global_step) <= MAX_NUMBER else check.count(n, "TuneReply.global_step"),
    )


def put_compute_request(message: ms.Compute, proto: pb.ComputeRequest, tensors: TensorSender) -> None:
    put_sender(message.sender, proto.sender, tensors)
    proto.sequence = message.sequence
    proto.names.extend(message.names)
    for operation in message.operations:
        put_operation(operation, proto.operations.add(), tensors)
    proto.minimization = message.minimization
    proto.note = message.note
    proto.cut = message.cut
    proto.term = message.term


def get_compute_request(proto: pb.ComputeRequest, tensors: TensorReceiver) -> ms.Compute:
    return ms.Compute(
        sender=get_sender(proto.sender, tensors),
        sequence=n if 1 <= (n := proto.sequence) <= MAX_NUMBER else check.positive(n, "ComputeRequest.sequence"),
        names=check.names(proto.names, "ComputeRequest.names", limits.MAX_ENTRIES) if proto.names else (),
        operations=check.parts(
            proto.operations, get_operation, tensors, "ComputeRequest.operations", limits.MAX_OPERATIONS
        )
        if proto.operations
        else (),
        minimization=proto.minimization and check.name_or_empty(proto.minimization, "ComputeRequest.minimization"),
        note=proto.note and check.note(proto.note, "ComputeRequest.note"),
        cut=n if 0 <= (n := proto.cut) <= MAX_NUMBER else check.count(n, "ComputeRequest.cut"),
        term=n if 0 <= (n := proto.term) <= MAX_NUMBER else check.count(n, "ComputeRequest.term"),
    )


def put_compute_reply(message: ms.Computed, proto: pb.ComputeReply, tensors: TensorSender) -> None:
    proto.outcome = _NUMBERS[message.outcome]
    proto.results.extend(message.results)
    proto.global_step = message.global_step
    proto.note = message.note
    proto.term = message.term


def get_compute_reply(proto: pb.ComputeReply, tensors: TensorReceiver) -> ms.Computed:
    return ms.Computed(
        outcome=outcome(proto.outcome, "ComputeReply.outcome"),
        results=check.any_numbers(proto.results, "ComputeReply.results", limits.MAX_RESULTS) if proto.results else (),
        global_step=n if 0 <= (n := proto.global_step) <= MAX_NUMBER else check.count(n, "ComputeReply.global_step"),
        note=proto.note and check.note(proto.note, "ComputeReply.note"),
        term=n if 0 <= (n := proto.term) <= MAX_NUMBER else check.count(n, "ComputeReply.term"),
    )


def put_queue(message: ms.QueueSpec, proto: pb.Queue, tensors: TensorSender) -> None:
    proto.name = message.name
    proto.size = message.size
    proto.block = message.block
    proto.epochs = message.epochs
    proto.seed = message.seed
    proto.limit = message.limit
    proto.in_order = message.in_order
    proto.evaluates = message.evaluates


def get_queue(proto: pb.Queue, tensors: TensorReceiver) -> ms.QueueSpec:
    try:
        return ms.QueueSpec(
            name=check.name(proto.name),
            size=n if 0 <= (n := proto.size) <= MAX_NUMBER else check.count(n, "Queue.size"),
            block=check.positive(proto.block, "Queue.block", limits.MAX_BLOCK),
            epochs=n if 0 <= (n := proto.epochs) <= MAX_NUMBER else check.count(n, "Queue.epochs"),
            seed=proto.seed,
            limit=n if 0 <= (n := proto.limit) <= MAX_NUMBER else check.count(n, "Queue.limit"),
            in_order=proto.in_order,
            evaluates=proto.evaluates,
        )
    except ValueError as error:
        raise Malformed(str(error)) from error


def put_finished(message: ms.Finished, proto: pb.Finished, tensors: TensorSender) -> None:
    proto.number = message.number
    if message.cost_sum is not None:
        proto.cost_sum = message.cost_sum
    proto.sums.extend(message.sums)


def get_finished(proto: pb.Finished, tensors: TensorReceiver) -> ms.Finished:
    return ms.Finished(
        number=n if 0 <= (n := proto.number) <= MAX_NUMBER else check.count(n, "Finished.number"),
        cost_sum=proto.cost_sum if proto.HasField("cost_sum") else None,
        sums=check.any_numbers(proto.sums, "Finished.sums", limits.MAX_SUMS) if proto.sums else (),
    )


def put_take_request(message: ms.Take, proto: pb.TakeRequest, tensors: TensorSender) -> None:
    put_sender(message.sender, proto.sender, tensors)
    put_queue(message.queue, proto.queue, tensors)
    if message.finished is not None:
        proto.finished.SetInParent()
        put_finished(message.finished, proto.finished, tensors)
    proto.reports_received = message.reports_received
    proto.give_back = message.give_back
    proto.timeline = message.timeline


def get_take_request(proto: pb.TakeRequest, tensors: TensorReceiver) -> ms.Take:
    return ms.Take(
        sender=get_sender(proto.sender, tensors),
        queue=get_queue(proto.queue, tensors),
        finished=get_finished(proto.finished, tensors) if proto.HasField("finished") else None,
        reports_received=n
        if 0 <= (n := proto.reports_received) <= MAX_NUMBER
        else check.count(n, "TakeRequest.reports_received"),
        give_back=proto.give_back,
        timeline=n if 0 <= (n := proto.timeline) <= MAX_NUMBER else check.count(n, "TakeRequest.timeline"),
    )


def put_block(message: ms.Block, proto: pb.Block, tensors: TensorSender) -> None:
    proto.number = message.number
    proto.epoch = message.epoch
    proto.start = message.start
    proto.stop = message.stop


def get_block(proto: pb.Block, tensors: TensorReceiver) -> ms.Block:
    return ms.Block(
        number=n if 0 <= (n := proto.number) <= MAX_NUMBER else check.count(n, "Block.number"),
        epoch=n if 1 <= (n := proto.epoch) <= MAX_NUMBER else check.positive(n, "Block.epoch"),
        start=check.below(proto.start, proto.stop, "Block.start", "stop"),
        stop=n if 1 <= (n := proto.stop) <= MAX_NUMBER else check.positive(n, "Block.stop"),
    )


def put_epoch_report(message: ms.EpochReport, proto: pb.EpochReport, tensors: TensorSender) -> None:
    proto.queue = message.queue
    proto.epoch = message.epoch
    if message.cost is not None:
        proto.cost = message.cost
    proto.examples = message.examples
    proto.sums.extend(message.sums)


def get_epoch_report(proto: pb.EpochReport, tensors: TensorReceiver) -> ms.EpochReport:
    return ms.EpochReport(
        queue=check.name(proto.queue),
        epoch=n if 1 <= (n := proto.epoch) <= MAX_NUMBER else check.positive(n, "EpochReport.epoch"),
        cost=proto.cost if proto.HasField("cost") else None,
        examples=n if 0 <= (n := proto.examples) <= MAX_NUMBER else check.count(n, "EpochReport.examples"),
        sums=check.any_numbers(proto.sums, "EpochReport.sums", limits.MAX_SUMS) if proto.sums else (),
    )


def put_take_reply(message: ms.Taken, proto: pb.TakeReply, tensors: TensorSender) -> None:
    if message.block is not None:
        proto.block.SetInParent()
        put_block(message.block, proto.block, tensors)
    proto.done = message.done
    proto.waiting_for = message.waiting_for
    for epoch_report in message.reports:
        put_epoch_report(epoch_report, proto.reports.add(), tensors)
    proto.chief = message.chief
    proto.cut = message.cut
    proto.stopped = message.stopped


def get_take_reply(proto: pb.TakeReply, tensors: TensorReceiver) -> ms.Taken:
    return ms.Taken(
        block=get_block(proto.block, tensors) if proto.HasField("block") else None,
        done=proto.done,
        waiting_for=proto.waiting_for and check.answer_text(proto.waiting_for, "TakeReply.waiting_for"),
        reports=check.parts(proto.reports, get_epoch_report, tensors, "TakeReply.reports", limits.MAX_LISTED)
        if proto.reports
        else (),
        chief=proto.chief,
        cut=n if 0 <= (n := proto.cut) <= MAX_NUMBER else check.count(n, "TakeReply.cut"),
        stopped=proto.stopped and check.answer_text(proto.stopped, "TakeReply.stopped"),
    )


def put_evaluation(message: ms.Evaluation, proto: pb.Evaluation, tensors: TensorSender) -> None:
    proto.number = message.number
    proto.examples = message.examples
    proto.portion = message.portion


def get_evaluation(proto: pb.Evaluation, tensors: TensorReceiver) -> ms.Evaluation:
    try:
        return ms.Evaluation(
            number=n if 1 <= (n := proto.number) <= MAX_NUMBER else check.positive(n, "Evaluation.number"),
            examples=n if 1 <= (n := proto.examples) <= MAX_NUMBER else check.positive(n, "Evaluation.examples"),
            portion=n if 1 <= (n := proto.portion) <= MAX_NUMBER else check.positive(n, "Evaluation.portion"),
        )
    except ValueError as error:
        raise Malformed(str(error)) from error


def put_accepted_point(message: ms.AcceptedPoint, proto: pb.AcceptedPoint, tensors: TensorSender) -> None:
    proto.iterations = message.iterations
    proto.evaluations = message.evaluations
    proto.loss = message.loss
    proto.gradient = message.gradient
    proto.step = message.step


def get_accepted_point(proto: pb.AcceptedPoint, tensors: TensorReceiver) -> ms.AcceptedPoint:
    return ms.AcceptedPoint(
        iterations=n if 0 <= (n := proto.iterations) <= MAX_NUMBER else check.count(n, "AcceptedPoint.iterations"),
        evaluations=n if 0 <= (n := proto.evaluations) <= MAX_NUMBER else check.count(n, "AcceptedPoint.evaluations"),
        loss=proto.loss,
        gradient=proto.gradient,
        step=proto.step,
    )


def put_evaluate_request(message: ms.Evaluate, proto: pb.EvaluateRequest, tensors: TensorSender) -> None:
    put_sender(message.sender, proto.sender, tensors)
    proto.name = message.name
    if message.evaluation is not None:
        proto.evaluation.SetInParent()
        put_evaluation(message.evaluation, proto.evaluation, tensors)
    proto.end = message.end
    proto.timeline = message.timeline
    if message.point is not None:
        proto.point.SetInParent()
        put_accepted_point(message.point, proto.point, tensors)
    proto.wait = message.wait
    proto.cut = message.cut
    proto.term = message.term


def get_evaluate_request(proto: pb.EvaluateRequest, tensors: TensorReceiver) -> ms.Evaluate:
    return ms.Evaluate(
        sender=get_sender(proto.sender, tensors),
        name=check.name(proto.name),
        evaluation=get_evaluation(proto.evaluation, tensors) if proto.HasField("evaluation") else None,
        end=proto.end and check.result(proto.end, "EvaluateRequest.end"),
        timeline=n if 0 <= (n := proto.timeline) <= MAX_NUMBER else check.count(n, "EvaluateRequest.timeline"),
        point=get_accepted_point(proto.point, tensors) if proto.HasField("point") else None,
        wait=proto.wait,
        cut=n if 0 <= (n := proto.cut) <= MAX_NUMBER else check.count(n, "EvaluateRequest.cut"),
        term=n if 0 <= (n := proto.term) <= MAX_NUMBER else check.count(n, "EvaluateRequest.term"),
    )


def put_evaluate_reply(message: ms.Evaluated, proto: pb.EvaluateReply, tensors: TensorSender) -> None:
    proto.number = message.number
    proto.counted = message.counted
    if message.loss is not None:
        proto.loss = message.loss
    proto.waiting_for = message.waiting_for
    proto.end = message.end
    proto.stopped = message.stopped
    proto.cut = message.cut


def get_evaluate_reply(proto: pb.EvaluateReply, tensors: TensorReceiver) -> ms.Evaluated:
    return ms.Evaluated(
        number=n if 0 <= (n := proto.number) <= MAX_NUMBER else check.count(n, "EvaluateReply.number"),
        counted=n if 0 <= (n := proto.counted) <= MAX_NUMBER else check.count(n, "EvaluateReply.counted"),
        loss=proto.loss if proto.HasField("loss") else None,
        waiting_for=proto.waiting_for and check.answer_text(proto.waiting_for, "EvaluateReply.waiting_for"),
        end=proto.end and check.result(proto.end, "EvaluateReply.end"),
        stopped=proto.stopped and check.answer_text(proto.stopped, "EvaluateReply.stopped"),
        cut=n if 0 <= (n := proto.cut) <= MAX_NUMBER else check.count(n, "EvaluateReply.cut"),
    )


def put_take_portion_request(message: ms.TakePortion, proto: pb.TakePortionRequest, tensors: TensorSender) -> None:
    put_sender(message.sender, proto.sender, tensors)
    proto.name = message.name
    proto.evaluation = message.evaluation
    proto.holding.extend(message.holding)
    proto.withdrawn.extend(message.withdrawn)
    proto.timeline = message.timeline


def get_take_portion_request(proto: pb.TakePortionRequest, tensors: TensorReceiver) -> ms.TakePortion:
    return ms.TakePortion(
        sender=get_sender(proto.sender, tensors),
        name=check.name(proto.name),
        evaluation=n if 0 <= (n := proto.evaluation) <= MAX_NUMBER else check.count(n, "TakePortionRequest.evaluation"),
        holding=check.numbers(proto.holding, "TakePortionRequest.holding", limits.MAX_HELD_PORTIONS)
        if proto.holding
        else (),
        withdrawn=check.numbers(proto.withdrawn, "TakePortionRequest.withdrawn", limits.MAX_ENTRIES)
        if proto.withdrawn
        else (),
        timeline=n if 0 <= (n := proto.timeline) <= MAX_NUMBER else check.count(n, "TakePortionRequest.timeline"),
    )


def put_portion(message: ms.Portion, proto: pb.Portion, tensors: TensorSender) -> None:
    proto.number = message.number
    proto.start = message.start
    proto.stop = message.stop
    proto.alone = message.alone


def get_portion(proto: pb.Portion, tensors: TensorReceiver) -> ms.Portion:
    return ms.Portion(
        number=n if 0 <= (n := proto.number) <= MAX_NUMBER else check.count(n, "Portion.number"),
        start=check.below(proto.start, proto.stop, "Portion.start", "stop"),
        stop=n if 1 <= (n := proto.stop) <= MAX_NUMBER else check.positive(n, "Portion.stop"),
        alone=proto.alone,
    )


def put_take_portion_reply(message: ms.PortionTaken, proto: pb.TakePortionReply, tensors: TensorSender) -> None:
    proto.evaluation = message.evaluation
    if message.portion is not None:
        proto.portion.SetInParent()
        put_portion(message.portion, proto.portion, tensors)
    proto.push = message.push
    proto.stop.extend(message.stop)
    proto.end = message.end
    proto.waiting_for = message.waiting_for
    proto.chief = message.chief
    proto.stopped = message.stopped
    proto.cut = message.cut


def get_take_portion_reply(proto: pb.TakePortionReply, tensors: TensorReceiver) -> ms.PortionTaken:
    return ms.PortionTaken(
        evaluation=n if 0 <= (n := proto.evaluation) <= MAX_NUMBER else check.count(n, "TakePortionReply.evaluation"),
        portion=get_portion(proto.portion, tensors) if proto.HasField("portion") else None,
        push=proto.push,
        stop=check.numbers(proto.stop, "TakePortionReply.stop", limits.MAX_HELD_PORTIONS) if proto.stop else (),
        end=proto.end and check.result(proto.end, "TakePortionReply.end"),
        waiting_for=proto.waiting_for and check.answer_text(proto.waiting_for, "TakePortionReply.waiting_for"),
        chief=proto.chief,
        stopped=proto.stopped and check.answer_text(proto.stopped, "TakePortionReply.stopped"),
        cut=n if 0 <= (n := proto.cut) <= MAX_NUMBER else check.count(n, "TakePortionReply.cut"),
    )


def put_claim_portion_request(message: ms.ClaimPortion, proto: pb.ClaimPortionRequest, tensors: TensorSender) -> None:
    put_sender(message.sender, proto.sender, tensors)
    proto.name = message.name
    proto.evaluation = message.evaluation
    proto.portion = message.portion
    proto.loss = message.loss
    proto.timeline = message.timeline


def get_claim_portion_request(proto: pb.ClaimPortionRequest, tensors: TensorReceiver) -> ms.ClaimPortion:
    return ms.ClaimPortion(
        sender=get_sender(proto.sender, tensors),
        name=check.name(proto.name),
        evaluation=n
        if 1 <= (n := proto.evaluation) <= MAX_NUMBER
        else check.positive(n, "ClaimPortionRequest.evaluation"),
        portion=n if 0 <= (n := proto.portion) <= MAX_NUMBER else check.count(n, "ClaimPortionRequest.portion"),
        loss=proto.loss,
        timeline=n if 0 <= (n := proto.timeline) <= MAX_NUMBER else check.count(n, "ClaimPortionRequest.timeline"),
    )


def put_claim_portion_reply(message: ms.PortionClaimed, proto: pb.ClaimPortionReply, tensors: TensorSender) -> None:
    proto.counted = message.counted


def get_claim_portion_reply(proto: pb.ClaimPortionReply, tensors: TensorReceiver) -> ms.PortionClaimed:
    return ms.PortionClaimed(
        counted=proto.counted,
    )


def put_cut_request(message: ms.Cut, proto: pb.CutRequest, tensors: TensorSender) -> None:
    proto.number = message.number
    if message.holder is not None:
        proto.holder.SetInParent()
        put_sender(message.holder, proto.holder, tensors)
    proto.release = message.release


def get_cut_request(proto: pb.CutRequest, tensors: TensorReceiver) -> ms.Cut:
    return ms.Cut(
        number=n if 0 <= (n := proto.number) <= MAX_NUMBER else check.count(n, "CutRequest.number"),
        holder=get_sender(proto.holder, tensors) if proto.HasField("holder") else None,
        release=proto.release,
    )


def put_cut_reply(message: ms.CutReport, proto: pb.CutReply, tensors: TensorSender) -> None:
    proto.number = message.number
    proto.complete = message.complete
    proto.waiting_for = message.waiting_for
    proto.written = message.written
    proto.held = message.held
    proto.problem = message.problem
    proto.storage = message.storage
    proto.gone = message.gone


def get_cut_reply(proto: pb.CutReply, tensors: TensorReceiver) -> ms.CutReport:
    return ms.CutReport(
        number=n if 0 <= (n := proto.number) <= MAX_NUMBER else check.count(n, "CutReply.number"),
        complete=proto.complete,
        waiting_for=proto.waiting_for and check.answer_text(proto.waiting_for, "CutReply.waiting_for"),
        written=proto.written,
        held=proto.held,
        problem=proto.problem and check.answer_text(proto.problem, "CutReply.problem"),
        storage=proto.storage,
        gone=proto.gone,
    )


def put_restore_request(message: ms.Restore, proto: pb.RestoreRequest, tensors: TensorSender) -> None:
    proto.timeline = message.timeline
    proto.cut = message.cut


def get_restore_request(proto: pb.RestoreRequest, tensors: TensorReceiver) -> ms.Restore:
    return ms.Restore(
        timeline=n if 0 <= (n := proto.timeline) <= MAX_NUMBER else check.count(n, "RestoreRequest.timeline"),
        cut=n if 0 <= (n := proto.cut) <= MAX_NUMBER else check.count(n, "RestoreRequest.cut"),
    )


def put_restore_reply(message: ms.Restored, proto: pb.RestoreReply, tensors: TensorSender) -> None:
    proto.timeline = message.timeline
    proto.cut = message.cut
    proto.lost = message.lost
    proto.cuts.extend(message.cuts)


def get_restore_reply(proto: pb.RestoreReply, tensors: TensorReceiver) -> ms.Restored:
    return ms.Restored(
        timeline=n if 0 <= (n := proto.timeline) <= MAX_NUMBER else check.count(n, "RestoreReply.timeline"),
        cut=n if 0 <= (n := proto.cut) <= MAX_NUMBER else check.count(n, "RestoreReply.cut"),
        lost=proto.lost,
        cuts=check.numbers(proto.cuts, "RestoreReply.cuts", limits.MAX_ENTRIES) if proto.cuts else (),
    )


def put_barrier_request(message: ms.Barrier, proto: pb.BarrierRequest, tensors: TensorSender) -> None:
    put_sender(message.sender, proto.sender, tensors)
    proto.number = message.number


def get_barrier_request(proto: pb.BarrierRequest, tensors: TensorReceiver) -> ms.Barrier:
    return ms.Barrier(
        sender=get_sender(proto.sender, tensors),
        number=n if 1 <= (n := proto.number) <= MAX_NUMBER else check.positive(n, "BarrierRequest.number"),
    )


def put_barrier_reply(message: ms.Passed, proto: pb.BarrierReply, tensors: TensorSender) -> None:
    proto.global_step = message.global_step


def get_barrier_reply(proto: pb.BarrierReply, tensors: TensorReceiver) -> ms.Passed:
    return ms.Passed(
        global_step=n if 0 <= (n := proto.global_step) <= MAX_NUMBER else check.count(n, "BarrierReply.global_step"),
    )


def put_stop_request(message: ms.Stop, proto: pb.StopRequest, tensors: TensorSender) -> None:
    put_sender(message.sender, proto.sender, tensors)
    proto.reason = message.reason


def get_stop_request(proto: pb.StopRequest, tensors: TensorReceiver) -> ms.Stop:
    return ms.Stop(
        sender=get_sender(proto.sender, tensors),
        reason=proto.reason and check.sentence(proto.reason, "StopRequest.reason"),
    )


def put_stop_reply(message: ms.Stopped, proto: pb.StopReply, tensors: TensorSender) -> None:
    proto.reason = message.reason


def get_stop_reply(proto: pb.StopReply, tensors: TensorReceiver) -> ms.Stopped:
    return ms.Stopped(
        reason=proto.reason and check.answer_text(proto.reason, "StopReply.reason"),
    )


def put_reset_request(message: ms.Reset, proto: pb.ResetRequest, tensors: TensorSender) -> None:
    proto.number = message.number
    proto.force = message.force


def get_reset_request(proto: pb.ResetRequest, tensors: TensorReceiver) -> ms.Reset:
    return ms.Reset(
        number=n if 1 <= (n := proto.number) <= MAX_NUMBER else check.positive(n, "ResetRequest.number"),
        force=proto.force,
    )


def put_reset_reply(message: ms.Emptied, proto: pb.ResetReply, tensors: TensorSender) -> None:
    put_job(message.job, proto.job, tensors)


def get_reset_reply(proto: pb.ResetReply, tensors: TensorReceiver) -> ms.Emptied:
    return ms.Emptied(
        job=get_job(proto.job, tensors),
    )


def put_intervene_request(message: ms.Intervene, proto: pb.InterveneRequest, tensors: TensorSender) -> None:
    proto.by = message.by
    proto.reason = message.reason
    proto.stop = message.stop
    proto.quarantine.extend(message.quarantine)
    proto.release.extend(message.release)
    proto.scale_learning_rate = message.scale_learning_rate


def get_intervene_request(proto: pb.InterveneRequest, tensors: TensorReceiver) -> ms.Intervene:
    return ms.Intervene(
        by=check.name(proto.by),
        reason=proto.reason and check.sentence(proto.reason, "InterveneRequest.reason"),
        stop=proto.stop,
        quarantine=check.names(proto.quarantine, "InterveneRequest.quarantine", limits.MAX_ENTRIES)
        if proto.quarantine
        else (),
        release=check.names(proto.release, "InterveneRequest.release", limits.MAX_ENTRIES) if proto.release else (),
        scale_learning_rate=check.amount(proto.scale_learning_rate, "InterveneRequest.scale_learning_rate"),
    )


def put_intervene_reply(message: ms.Intervened, proto: pb.InterveneReply, tensors: TensorSender) -> None:
    proto.global_step = message.global_step
    proto.quarantined.extend(message.quarantined)


def get_intervene_reply(proto: pb.InterveneReply, tensors: TensorReceiver) -> ms.Intervened:
    return ms.Intervened(
        global_step=n if 0 <= (n := proto.global_step) <= MAX_NUMBER else check.count(n, "InterveneReply.global_step"),
        quarantined=check.names(proto.quarantined, "InterveneReply.quarantined", limits.MAX_ENTRIES)
        if proto.quarantined
        else (),
    )


def put_status_request(message: ms.Status, proto: pb.StatusRequest, tensors: TensorSender) -> None:
    proto.first_variable = message.first_variable
    proto.detail = message.detail


def get_status_request(proto: pb.StatusRequest, tensors: TensorReceiver) -> ms.Status:
    return ms.Status(
        first_variable=n
        if 0 <= (n := proto.first_variable) <= MAX_NUMBER
        else check.count(n, "StatusRequest.first_variable"),
        detail=proto.detail,
    )


def put_variable_status(message: ms.VariableStatus, proto: pb.VariableStatus, tensors: TensorSender) -> None:
    put_spec(message.spec, proto.tensor)
    proto.version = message.version
    proto.updates = message.updates
    if message.optimizer is not None:
        proto.optimizer.SetInParent()
        put_optimizer(message.optimizer, proto.optimizer, tensors)
    proto.slots.extend(message.slots)
    proto.nbytes = message.nbytes
    if message.part is not None:
        proto.part.SetInParent()
        put_part(message.part, proto.part, tensors)
    proto.table = message.table
    proto.bytes_in = message.bytes_in
    proto.bytes_out = message.bytes_out
    proto.sampled = message.sampled
    proto.unchanged = message.unchanged


def get_variable_status(proto: pb.VariableStatus, tensors: TensorReceiver) -> ms.VariableStatus:
    return ms.VariableStatus(
        spec=get_spec(proto.tensor),
        version=n if 0 <= (n := proto.version) <= MAX_NUMBER else check.count(n, "VariableStatus.version"),
        updates=n if 0 <= (n := proto.updates) <= MAX_NUMBER else check.count(n, "VariableStatus.updates"),
        optimizer=get_optimizer(proto.optimizer, tensors) if proto.HasField("optimizer") else None,
        slots=check.names(proto.slots, "VariableStatus.slots", limits.MAX_ENTRIES) if proto.slots else (),
        nbytes=n if 0 <= (n := proto.nbytes) <= MAX_NUMBER else check.count(n, "VariableStatus.nbytes"),
        part=get_part(proto.part, tensors) if proto.HasField("part") else None,
        table=proto.table,
        bytes_in=n if 0 <= (n := proto.bytes_in) <= MAX_NUMBER else check.count(n, "VariableStatus.bytes_in"),
        bytes_out=n if 0 <= (n := proto.bytes_out) <= MAX_NUMBER else check.count(n, "VariableStatus.bytes_out"),
        sampled=n if 0 <= (n := proto.sampled) <= MAX_NUMBER else check.count(n, "VariableStatus.sampled"),
        unchanged=n if 0 <= (n := proto.unchanged) <= MAX_NUMBER else check.count(n, "VariableStatus.unchanged"),
    )


def put_worker_status(message: ms.WorkerStatus, proto: pb.WorkerStatus, tensors: TensorSender) -> None:
    proto.name = message.name
    proto.incarnation = message.incarnation
    proto.number = message.number
    proto.state = message.state
    proto.steps = message.steps
    proto.staleness = message.staleness
    proto.staleness_sum = message.staleness_sum
    if message.loss is not None:
        proto.loss = message.loss
    proto.epoch = message.epoch
    proto.lease_left = message.lease_left
    proto.dropped = message.dropped
    proto.waiting_for = message.waiting_for
    proto.tensor_transport = message.tensor_transport
    proto.chief = message.chief
    proto.clipped = message.clipped
    if message.cost is not None:
        proto.cost = message.cost
    proto.waited = message.waited
    proto.held = message.held
    proto.encoding = message.encoding
    proto.gradient = message.gradient
    proto.gradient_mean = message.gradient_mean
    proto.error = message.error
    proto.error_time = message.error_time
    proto.drop_reason = message.drop_reason
    proto.training = message.training
    proto.empty = message.empty
    proto.jumps = message.jumps
    proto.jump = message.jump
    proto.jumped_at = message.jumped_at
    if message.first_loss is not None:
        proto.first_loss = message.first_loss
    if message.peak_cost is not None:
        proto.peak_cost = message.peak_cost
    proto.between_blocks = message.between_blocks
    proto.quarantined = message.quarantined


def get_worker_status(proto: pb.WorkerStatus, tensors: TensorReceiver) -> ms.WorkerStatus:
    return ms.WorkerStatus(
        name=check.name(proto.name),
        incarnation=n if 0 <= (n := proto.incarnation) <= MAX_NUMBER else check.count(n, "WorkerStatus.incarnation"),
        number=n if 0 <= (n := proto.number) <= MAX_NUMBER else check.count(n, "WorkerStatus.number"),
        state=check.worker_state(proto.state, "WorkerStatus.state"),
        steps=n if 0 <= (n := proto.steps) <= MAX_NUMBER else check.count(n, "WorkerStatus.steps"),
        staleness=n if 0 <= (n := proto.staleness) <= MAX_NUMBER else check.count(n, "WorkerStatus.staleness"),
        staleness_sum=n
        if 0 <= (n := proto.staleness_sum) <= MAX_NUMBER
        else check.count(n, "WorkerStatus.staleness_sum"),
        loss=proto.loss if proto.HasField("loss") else None,
        epoch=n if 0 <= (n := proto.epoch) <= MAX_NUMBER else check.count(n, "WorkerStatus.epoch"),
        lease_left=proto.lease_left,
        dropped=n if 0 <= (n := proto.dropped) <= MAX_NUMBER else check.count(n, "WorkerStatus.dropped"),
        waiting_for=proto.waiting_for and check.answer_text(proto.waiting_for, "WorkerStatus.waiting_for"),
        tensor_transport=proto.tensor_transport
        and check.answer_text(proto.tensor_transport, "WorkerStatus.tensor_transport"),
        chief=proto.chief,
        clipped=n if 0 <= (n := proto.clipped) <= MAX_NUMBER else check.count(n, "WorkerStatus.clipped"),
        cost=proto.cost if proto.HasField("cost") else None,
        waited=check.amount(proto.waited, "WorkerStatus.waited"),
        held=check.amount(proto.held, "WorkerStatus.held"),
        encoding=proto.encoding and check.answer_text(proto.encoding, "WorkerStatus.encoding"),
        gradient=proto.gradient,
        gradient_mean=proto.gradient_mean,
        error=proto.error and check.answer_text(proto.error, "WorkerStatus.error"),
        error_time=check.amount(proto.error_time, "WorkerStatus.error_time"),
        drop_reason=proto.drop_reason and check.answer_text(proto.drop_reason, "WorkerStatus.drop_reason"),
        training=proto.training,
        empty=n if 0 <= (n := proto.empty) <= MAX_NUMBER else check.count(n, "WorkerStatus.empty"),
        jumps=n if 0 <= (n := proto.jumps) <= MAX_NUMBER else check.count(n, "WorkerStatus.jumps"),
        jump=check.amount(proto.jump, "WorkerStatus.jump"),
        jumped_at=n if 0 <= (n := proto.jumped_at) <= MAX_NUMBER else check.count(n, "WorkerStatus.jumped_at"),
        first_loss=proto.first_loss if proto.HasField("first_loss") else None,
        peak_cost=proto.peak_cost if proto.HasField("peak_cost") else None,
        between_blocks=proto.between_blocks,
        quarantined=proto.quarantined,
    )


def put_traffic(message: ms.Traffic, proto: pb.Traffic, tensors: TensorSender) -> None:
    proto.pushes = message.pushes
    proto.bytes_in = message.bytes_in
    proto.bytes_out = message.bytes_out


def get_traffic(proto: pb.Traffic, tensors: TensorReceiver) -> ms.Traffic:
    return ms.Traffic(
        pushes=check.amount(proto.pushes, "Traffic.pushes"),
        bytes_in=check.amount(proto.bytes_in, "Traffic.bytes_in"),
        bytes_out=check.amount(proto.bytes_out, "Traffic.bytes_out"),
    )


def put_staleness(message: ms.Staleness, proto: pb.Staleness, tensors: TensorSender) -> None:
    proto.p50 = message.p50
    proto.p99 = message.p99


def get_staleness(proto: pb.Staleness, tensors: TensorReceiver) -> ms.Staleness:
    return ms.Staleness(
        p50=n if 0 <= (n := proto.p50) <= MAX_NUMBER else check.count(n, "Staleness.p50"),
        p99=n if 0 <= (n := proto.p99) <= MAX_NUMBER else check.count(n, "Staleness.p99"),
    )


def put_change(message: ms.Change, proto: pb.Change, tensors: TensorSender) -> None:
    proto.global_step = message.global_step
    proto.worker = message.worker
    proto.names.extend(message.names)
    put_optimizer(message.optimizer, proto.optimizer, tensors)
    proto.others = message.others


def get_change(proto: pb.Change, tensors: TensorReceiver) -> ms.Change:
    return ms.Change(
        global_step=n if 0 <= (n := proto.global_step) <= MAX_NUMBER else check.count(n, "Change.global_step"),
        worker=check.name(proto.worker),
        names=check.names(proto.names, "Change.names", limits.MAX_ENTRIES) if proto.names else (),
        optimizer=get_optimizer(proto.optimizer, tensors),
        others=n if 0 <= (n := proto.others) <= MAX_NUMBER else check.count(n, "Change.others"),
    )


def put_last_push(message: ms.LastPush, proto: pb.LastPush, tensors: TensorSender) -> None:
    proto.worker = message.worker
    proto.incarnation = message.incarnation
    proto.sequence = message.sequence
    proto.shards.extend(message.shards)


def get_last_push(proto: pb.LastPush, tensors: TensorReceiver) -> ms.LastPush:
    return ms.LastPush(
        worker=check.name(proto.worker),
        incarnation=n if 0 <= (n := proto.incarnation) <= MAX_NUMBER else check.count(n, "LastPush.incarnation"),
        sequence=n if 0 <= (n := proto.sequence) <= MAX_NUMBER else check.count(n, "LastPush.sequence"),
        shards=check.numbers(proto.shards, "LastPush.shards", limits.MAX_SHARDS) if proto.shards else (),
    )


def put_storage_status(message: ms.StorageStatus, proto: pb.StorageStatus, tensors: TensorSender) -> None:
    proto.folder = message.folder
    proto.last = message.last
    proto.age = message.age
    proto.writing = message.writing
    proto.waiting_for = message.waiting_for
    proto.problem = message.problem
    proto.journal = message.journal
    proto.journal_bytes = message.journal_bytes
    proto.timeline = message.timeline
    proto.lost_pushes = message.lost_pushes


def get_storage_status(proto: pb.StorageStatus, tensors: TensorReceiver) -> ms.StorageStatus:
    return ms.StorageStatus(
        folder=proto.folder and check.answer_text(proto.folder, "StorageStatus.folder"),
        last=n if 0 <= (n := proto.last) <= MAX_NUMBER else check.count(n, "StorageStatus.last"),
        age=check.amount(proto.age, "StorageStatus.age"),
        writing=n if 0 <= (n := proto.writing) <= MAX_NUMBER else check.count(n, "StorageStatus.writing"),
        waiting_for=proto.waiting_for and check.answer_text(proto.waiting_for, "StorageStatus.waiting_for"),
        problem=proto.problem and check.answer_text(proto.problem, "StorageStatus.problem"),
        journal=proto.journal,
        journal_bytes=n
        if 0 <= (n := proto.journal_bytes) <= MAX_NUMBER
        else check.count(n, "StorageStatus.journal_bytes"),
        timeline=n if 0 <= (n := proto.timeline) <= MAX_NUMBER else check.count(n, "StorageStatus.timeline"),
        lost_pushes=n if 0 <= (n := proto.lost_pushes) <= MAX_NUMBER else check.count(n, "StorageStatus.lost_pushes"),
    )


def put_queue_status(message: ms.QueueStatus, proto: pb.QueueStatus, tensors: TensorSender) -> None:
    put_queue(message.spec, proto.spec, tensors)
    proto.epoch = message.epoch
    proto.done = message.done
    proto.blocks_out = message.blocks_out


def get_queue_status(proto: pb.QueueStatus, tensors: TensorReceiver) -> ms.QueueStatus:
    return ms.QueueStatus(
        spec=get_queue(proto.spec, tensors),
        epoch=n if 1 <= (n := proto.epoch) <= MAX_NUMBER else check.positive(n, "QueueStatus.epoch"),
        done=n if 0 <= (n := proto.done) <= MAX_NUMBER else check.count(n, "QueueStatus.done"),
        blocks_out=n if 0 <= (n := proto.blocks_out) <= MAX_NUMBER else check.count(n, "QueueStatus.blocks_out"),
    )


def put_job_report(message: ms.JobReport, proto: pb.JobReport, tensors: TensorSender) -> None:
    put_job(message.job, proto.job, tensors)
    proto.state = message.state
    proto.global_step = message.global_step
    proto.workers = message.workers
    proto.epochs = message.epochs
    if message.cost is not None:
        proto.cost = message.cost


def get_job_report(proto: pb.JobReport, tensors: TensorReceiver) -> ms.JobReport:
    return ms.JobReport(
        job=get_job(proto.job, tensors),
        state=check.job_state(proto.state, "JobReport.state"),
        global_step=n if 0 <= (n := proto.global_step) <= MAX_NUMBER else check.count(n, "JobReport.global_step"),
        workers=n if 0 <= (n := proto.workers) <= MAX_NUMBER else check.count(n, "JobReport.workers"),
        epochs=n if 0 <= (n := proto.epochs) <= MAX_NUMBER else check.count(n, "JobReport.epochs"),
        cost=proto.cost if proto.HasField("cost") else None,
    )


def put_totals(message: ms.Totals, proto: pb.Totals, tensors: TensorSender) -> None:
    proto.variables = message.variables
    proto.workers = message.workers
    proto.live = message.live
    proto.queues = message.queues


def get_totals(proto: pb.Totals, tensors: TensorReceiver) -> ms.Totals:
    return ms.Totals(
        variables=n if 0 <= (n := proto.variables) <= MAX_NUMBER else check.count(n, "Totals.variables"),
        workers=n if 0 <= (n := proto.workers) <= MAX_NUMBER else check.count(n, "Totals.workers"),
        live=n if 0 <= (n := proto.live) <= MAX_NUMBER else check.count(n, "Totals.live"),
        queues=n if 0 <= (n := proto.queues) <= MAX_NUMBER else check.count(n, "Totals.queues"),
    )


def put_event_report(message: ms.EventReport, proto: pb.EventReport, tensors: TensorSender) -> None:
    proto.number = message.number
    proto.time = message.time
    proto.kind = message.kind
    proto.text = message.text
    proto.warning = message.warning
    proto.worker = message.worker
    proto.global_step = message.global_step


def get_event_report(proto: pb.EventReport, tensors: TensorReceiver) -> ms.EventReport:
    return ms.EventReport(
        number=n if 0 <= (n := proto.number) <= MAX_NUMBER else check.count(n, "EventReport.number"),
        time=check.amount(proto.time, "EventReport.time"),
        kind=proto.kind and check.answer_text(proto.kind, "EventReport.kind"),
        text=proto.text and check.answer_text(proto.text, "EventReport.text"),
        warning=proto.warning,
        worker=proto.worker and check.answer_text(proto.worker, "EventReport.worker"),
        global_step=n if 0 <= (n := proto.global_step) <= MAX_NUMBER else check.count(n, "EventReport.global_step"),
    )


def put_staleness_count(message: ms.StalenessCount, proto: pb.StalenessCount, tensors: TensorSender) -> None:
    proto.staleness = message.staleness
    proto.pushes = message.pushes


def get_staleness_count(proto: pb.StalenessCount, tensors: TensorReceiver) -> ms.StalenessCount:
    return ms.StalenessCount(
        staleness=n if 0 <= (n := proto.staleness) <= MAX_NUMBER else check.count(n, "StalenessCount.staleness"),
        pushes=n if 0 <= (n := proto.pushes) <= MAX_NUMBER else check.count(n, "StalenessCount.pushes"),
    )


def put_worker_staleness(message: ms.WorkerStaleness, proto: pb.WorkerStaleness, tensors: TensorSender) -> None:
    proto.worker = message.worker
    proto.incarnation = message.incarnation
    proto.pushes.extend(message.pushes)
    proto.sums.extend(message.sums)


def get_worker_staleness(proto: pb.WorkerStaleness, tensors: TensorReceiver) -> ms.WorkerStaleness:
    return ms.WorkerStaleness(
        worker=check.name(proto.worker),
        incarnation=n if 0 <= (n := proto.incarnation) <= MAX_NUMBER else check.count(n, "WorkerStaleness.incarnation"),
        pushes=check.numbers(proto.pushes, "WorkerStaleness.pushes", limits.MAX_SHARDS) if proto.pushes else (),
        sums=check.numbers(proto.sums, "WorkerStaleness.sums", limits.MAX_SHARDS) if proto.sums else (),
    )


def put_staleness_matrix(message: ms.StalenessMatrix, proto: pb.StalenessMatrix, tensors: TensorSender) -> None:
    proto.variables.extend(message.variables)
    for worker_staleness in message.workers:
        put_worker_staleness(worker_staleness, proto.workers.add(), tensors)


def get_staleness_matrix(proto: pb.StalenessMatrix, tensors: TensorReceiver) -> ms.StalenessMatrix:
    return ms.StalenessMatrix(
        variables=check.names(proto.variables, "StalenessMatrix.variables", limits.MAX_ENTRIES)
        if proto.variables
        else (),
        workers=check.parts(proto.workers, get_worker_staleness, tensors, "StalenessMatrix.workers", limits.MAX_LISTED)
        if proto.workers
        else (),
    )


def put_status_detail(message: ms.StatusDetail, proto: pb.StatusDetail, tensors: TensorSender) -> None:
    for event_report in message.events:
        put_event_report(event_report, proto.events.add(), tensors)
    for staleness_count in message.stalenesses:
        put_staleness_count(staleness_count, proto.stalenesses.add(), tensors)
    put_staleness_matrix(message.matrix, proto.matrix, tensors)


def get_status_detail(proto: pb.StatusDetail, tensors: TensorReceiver) -> ms.StatusDetail:
    return ms.StatusDetail(
        events=check.parts(proto.events, get_event_report, tensors, "StatusDetail.events", limits.MAX_LISTED)
        if proto.events
        else (),
        stalenesses=check.parts(
            proto.stalenesses, get_staleness_count, tensors, "StatusDetail.stalenesses", limits.MAX_LISTED
        )
        if proto.stalenesses
        else (),
        matrix=get_staleness_matrix(proto.matrix, tensors),
    )


def put_minimization_status(
    message: ms.MinimizationStatus, proto: pb.MinimizationStatus, tensors: TensorSender
) -> None:
    proto.name = message.name
    proto.evaluation = message.evaluation
    proto.portions = message.portions
    proto.counted = message.counted
    proto.out = message.out
    proto.claimed = message.claimed
    proto.backups = message.backups
    proto.backups_won = message.backups_won
    proto.end = message.end
    if message.point is not None:
        proto.point.SetInParent()
        put_accepted_point(message.point, proto.point, tensors)


def get_minimization_status(proto: pb.MinimizationStatus, tensors: TensorReceiver) -> ms.MinimizationStatus:
    return ms.MinimizationStatus(
        name=check.name(proto.name),
        evaluation=n if 0 <= (n := proto.evaluation) <= MAX_NUMBER else check.count(n, "MinimizationStatus.evaluation"),
        portions=n if 0 <= (n := proto.portions) <= MAX_NUMBER else check.count(n, "MinimizationStatus.portions"),
        counted=n if 0 <= (n := proto.counted) <= MAX_NUMBER else check.count(n, "MinimizationStatus.counted"),
        out=n if 0 <= (n := proto.out) <= MAX_NUMBER else check.count(n, "MinimizationStatus.out"),
        claimed=n if 0 <= (n := proto.claimed) <= MAX_NUMBER else check.count(n, "MinimizationStatus.claimed"),
        backups=n if 0 <= (n := proto.backups) <= MAX_NUMBER else check.count(n, "MinimizationStatus.backups"),
        backups_won=n
        if 0 <= (n := proto.backups_won) <= MAX_NUMBER
        else check.count(n, "MinimizationStatus.backups_won"),
        end=proto.end and check.result(proto.end, "MinimizationStatus.end"),
        point=get_accepted_point(proto.point, tensors) if proto.HasField("point") else None,
    )


def put_status_reply(message: ms.StatusReport, proto: pb.StatusReply, tensors: TensorSender) -> None:
    proto.shard = message.shard
    proto.shards = message.shards
    proto.global_step = message.global_step
    proto.repeated = message.repeated
    for variable_status in message.variables:
        put_variable_status(variable_status, proto.variables.add(), tensors)
    for worker_status in message.workers:
        put_worker_status(worker_status, proto.workers.add(), tensors)
    for epoch_report in message.epochs:
        put_epoch_report(epoch_report, proto.epochs.add(), tensors)
    proto.dropped = message.dropped
    proto.nbytes = message.nbytes
    proto.consistency = message.consistency
    proto.handling = message.handling
    put_traffic(message.traffic, proto.traffic, tensors)
    put_staleness(message.staleness, proto.staleness, tensors)
    for change in message.changes:
        put_change(change, proto.changes.add(), tensors)
    proto.half_pushes = message.half_pushes
    for last_push in message.last_pushes:
        put_last_push(last_push, proto.last_pushes.add(), tensors)
    put_storage_status(message.storage, proto.storage, tensors)
    for queue_status in message.queues:
        put_queue_status(queue_status, proto.queues.add(), tensors)
    for job_report in message.jobs:
        put_job_report(job_report, proto.jobs.add(), tensors)
    proto.stopped = message.stopped
    proto.exposure = message.exposure
    put_totals(message.totals, proto.totals, tensors)
    proto.held = message.held
    proto.clipped = message.clipped
    if message.detail is not None:
        proto.detail.SetInParent()
        put_status_detail(message.detail, proto.detail, tensors)
    for minimization_status in message.minimizations:
        put_minimization_status(minimization_status, proto.minimizations.add(), tensors)


def get_status_reply(proto: pb.StatusReply, tensors: TensorReceiver) -> ms.StatusReport:
    return ms.StatusReport(
        shard=check.below(proto.shard, proto.shards, "StatusReply.shard", "shards"),
        shards=n if 1 <= (n := proto.shards) <= MAX_NUMBER else check.positive(n, "StatusReply.shards"),
        global_step=n if 0 <= (n := proto.global_step) <= MAX_NUMBER else check.count(n, "StatusReply.global_step"),
        repeated=n if 0 <= (n := proto.repeated) <= MAX_NUMBER else check.count(n, "StatusReply.repeated"),
        variables=check.parts(
            proto.variables,
            get_variable_status,
            tensors,
            "StatusReply.variables",
            limits.MAX_ENTRIES,
            attrgetter("spec.name"),
        )
        if proto.variables
        else (),
        workers=check.parts(proto.workers, get_worker_status, tensors, "StatusReply.workers", limits.MAX_LISTED)
        if proto.workers
        else (),
        epochs=check.parts(proto.epochs, get_epoch_report, tensors, "StatusReply.epochs", limits.MAX_LISTED)
        if proto.epochs
        else (),
        dropped=n if 0 <= (n := proto.dropped) <= MAX_NUMBER else check.count(n, "StatusReply.dropped"),
        nbytes=n if 0 <= (n := proto.nbytes) <= MAX_NUMBER else check.count(n, "StatusReply.nbytes"),
        consistency=proto.consistency and check.answer_text(proto.consistency, "StatusReply.consistency"),
        handling=proto.handling and check.answer_text(proto.handling, "StatusReply.handling"),
        traffic=get_traffic(proto.traffic, tensors),
        staleness=get_staleness(proto.staleness, tensors),
        changes=check.parts(proto.changes, get_change, tensors, "StatusReply.changes", limits.MAX_LISTED)
        if proto.changes
        else (),
        half_pushes=n if 0 <= (n := proto.half_pushes) <= MAX_NUMBER else check.count(n, "StatusReply.half_pushes"),
        last_pushes=check.parts(proto.last_pushes, get_last_push, tensors, "StatusReply.last_pushes", limits.MAX_LISTED)
        if proto.last_pushes
        else (),
        storage=get_storage_status(proto.storage, tensors),
        queues=check.parts(
            proto.queues, get_queue_status, tensors, "StatusReply.queues", limits.MAX_LISTED, attrgetter("spec.name")
        )
        if proto.queues
        else (),
        jobs=check.parts(proto.jobs, get_job_report, tensors, "StatusReply.jobs", limits.MAX_LISTED)
        if proto.jobs
        else (),
        stopped=proto.stopped and check.answer_text(proto.stopped, "StatusReply.stopped"),
        exposure=proto.exposure and check.answer_text(proto.exposure, "StatusReply.exposure"),
        totals=get_totals(proto.totals, tensors),
        held=n if 0 <= (n := proto.held) <= MAX_NUMBER else check.count(n, "StatusReply.held"),
        clipped=n if 0 <= (n := proto.clipped) <= MAX_NUMBER else check.count(n, "StatusReply.clipped"),
        detail=get_status_detail(proto.detail, tensors) if proto.HasField("detail") else None,
        minimizations=check.parts(
            proto.minimizations,
            get_minimization_status,
            tensors,
            "StatusReply.minimizations",
            limits.MAX_LISTED,
            attrgetter("name"),
        )
        if proto.minimizations
        else (),
    )


def put_member_state(message: ms.MemberState, proto: spb.MemberState, tensors: TensorSender) -> None:
    proto.name = message.name
    proto.number = message.number
    proto.incarnation = message.incarnation
    proto.process_nonce = message.process_nonce
    proto.state = message.state
    proto.steps = message.steps
    proto.staleness = message.staleness
    proto.staleness_sum = message.staleness_sum
    proto.clock = message.clock
    proto.dropped = message.dropped
    proto.settled = message.settled
    proto.half_pushes = message.half_pushes
    proto.out_of_data = message.out_of_data
    proto.tensor_transport = message.tensor_transport
    if message.loss is not None:
        proto.loss = message.loss
    if message.pushed is not None:
        proto.pushed.SetInParent()
        put_push_reply(message.pushed, proto.pushed, tensors)
    if message.assigned is not None:
        proto.assigned.SetInParent()
        put_assign_reply(message.assigned, proto.assigned, tensors)
    if message.tuned is not None:
        proto.tuned.SetInParent()
        put_tune_reply(message.tuned, proto.tuned, tensors)
    if message.last_push is not None:
        proto.last_push.SetInParent()
        put_last_push(message.last_push, proto.last_push, tensors)
    proto.must_join = message.must_join
    proto.barriers = message.barriers
    proto.name_key = message.name_key
    proto.clipped = message.clipped
    proto.quarantined = message.quarantined
    if message.computed is not None:
        proto.computed.SetInParent()
        put_compute_reply(message.computed, proto.computed, tensors)


def get_member_state(proto: spb.MemberState, tensors: TensorReceiver) -> ms.MemberState:
    return ms.MemberState(
        name=check.name(proto.name),
        number=n if 0 <= (n := proto.number) <= MAX_NUMBER else check.count(n, "MemberState.number"),
        incarnation=n if 0 <= (n := proto.incarnation) <= MAX_NUMBER else check.count(n, "MemberState.incarnation"),
        process_nonce=check.count(proto.process_nonce, "MemberState.process_nonce", check.LARGEST),
        state=check.worker_state(proto.state, "MemberState.state"),
        steps=n if 0 <= (n := proto.steps) <= MAX_NUMBER else check.count(n, "MemberState.steps"),
        staleness=n if 0 <= (n := proto.staleness) <= MAX_NUMBER else check.count(n, "MemberState.staleness"),
        staleness_sum=n
        if 0 <= (n := proto.staleness_sum) <= MAX_NUMBER
        else check.count(n, "MemberState.staleness_sum"),
        clock=n if 0 <= (n := proto.clock) <= MAX_NUMBER else check.count(n, "MemberState.clock"),
        dropped=n if 0 <= (n := proto.dropped) <= MAX_NUMBER else check.count(n, "MemberState.dropped"),
        settled=n if 0 <= (n := proto.settled) <= MAX_NUMBER else check.count(n, "MemberState.settled"),
        half_pushes=n if 0 <= (n := proto.half_pushes) <= MAX_NUMBER else check.count(n, "MemberState.half_pushes"),
        out_of_data=proto.out_of_data,
        tensor_transport=proto.tensor_transport
        and check.answer_text(proto.tensor_transport, "MemberState.tensor_transport"),
        loss=proto.loss if proto.HasField("loss") else None,
        pushed=get_push_reply(proto.pushed, tensors) if proto.HasField("pushed") else None,
        assigned=get_assign_reply(proto.assigned, tensors) if proto.HasField("assigned") else None,
        tuned=get_tune_reply(proto.tuned, tensors) if proto.HasField("tuned") else None,
        last_push=get_last_push(proto.last_push, tensors) if proto.HasField("last_push") else None,
        must_join=proto.must_join,
        barriers=n if 0 <= (n := proto.barriers) <= MAX_NUMBER else check.count(n, "MemberState.barriers"),
        name_key=check.secret(proto.name_key, "MemberState.name_key"),
        clipped=n if 0 <= (n := proto.clipped) <= MAX_NUMBER else check.count(n, "MemberState.clipped"),
        quarantined=proto.quarantined and check.answer_text(proto.quarantined, "MemberState.quarantined"),
        computed=get_compute_reply(proto.computed, tensors) if proto.HasField("computed") else None,
    )


def put_membership_state(message: ms.MembershipState, proto: spb.MembershipState, tensors: TensorSender) -> None:
    for member_state in message.members:
        put_member_state(member_state, proto.members.add(), tensors)
    proto.training.extend(message.training)
    proto.finished.extend(message.finished)
    proto.last_clock = message.last_clock
    if message.chief is not None:
        proto.chief.SetInParent()
        put_sender(message.chief, proto.chief, tensors)
    proto.done = message.done
    proto.half_pushes = message.half_pushes
    for last_push in message.last_pushes:
        put_last_push(last_push, proto.last_pushes.add(), tensors)
    proto.last_incarnation = message.last_incarnation
    proto.stalled.extend(message.stalled)
    proto.joined = message.joined
    proto.forgotten = message.forgotten
    proto.forgotten_lost = message.forgotten_lost
    proto.forgotten_finished = message.forgotten_finished


def get_membership_state(proto: spb.MembershipState, tensors: TensorReceiver) -> ms.MembershipState:
    return ms.MembershipState(
        members=check.parts(
            proto.members, get_member_state, tensors, "MembershipState.members", None, attrgetter("name")
        )
        if proto.members
        else (),
        training=check.names(proto.training, "MembershipState.training", None) if proto.training else (),
        finished=check.names(proto.finished, "MembershipState.finished", None) if proto.finished else (),
        last_clock=n if 0 <= (n := proto.last_clock) <= MAX_NUMBER else check.count(n, "MembershipState.last_clock"),
        chief=get_sender(proto.chief, tensors) if proto.HasField("chief") else None,
        done=proto.done,
        half_pushes=n if 0 <= (n := proto.half_pushes) <= MAX_NUMBER else check.count(n, "MembershipState.half_pushes"),
        last_pushes=check.parts(proto.last_pushes, get_last_push, tensors, "MembershipState.last_pushes", None)
        if proto.last_pushes
        else (),
        last_incarnation=n
        if 0 <= (n := proto.last_incarnation) <= MAX_NUMBER
        else check.count(n, "MembershipState.last_incarnation"),
        stalled=check.names(proto.stalled, "MembershipState.stalled", None) if proto.stalled else (),
        joined=n if 0 <= (n := proto.joined) <= MAX_NUMBER else check.count(n, "MembershipState.joined"),
        forgotten=n if 0 <= (n := proto.forgotten) <= MAX_NUMBER else check.count(n, "MembershipState.forgotten"),
        forgotten_lost=proto.forgotten_lost,
        forgotten_finished=proto.forgotten_finished,
    )


def put_variable_state(message: ms.VariableState, proto: spb.VariableState, tensors: TensorSender) -> None:
    put_spec(message.spec, proto.tensor)
    proto.version = message.version
    proto.updates = message.updates
    proto.growth = message.growth
    if message.declared is not None:
        proto.declared.SetInParent()
        put_optimizer(message.declared, proto.declared, tensors)
    if message.optimizer is not None:
        proto.optimizer.SetInParent()
        put_optimizer(message.optimizer, proto.optimizer, tensors)
    if message.initial is not None:
        proto.initial.SetInParent()
        put_row_initializer(message.initial, proto.initial, tensors)
    if message.part is not None:
        proto.part.SetInParent()
        put_part(message.part, proto.part, tensors)
    proto.vectors.extend(message.vectors)
    proto.stage = message.stage


def get_variable_state(proto: spb.VariableState, tensors: TensorReceiver) -> ms.VariableState:
    return ms.VariableState(
        spec=get_spec(proto.tensor),
        version=n if 0 <= (n := proto.version) <= MAX_NUMBER else check.count(n, "VariableState.version"),
        updates=n if 0 <= (n := proto.updates) <= MAX_NUMBER else check.count(n, "VariableState.updates"),
        growth=proto.growth,
        declared=get_optimizer(proto.declared, tensors) if proto.HasField("declared") else None,
        optimizer=get_optimizer(proto.optimizer, tensors) if proto.HasField("optimizer") else None,
        initial=get_row_initializer(proto.initial, tensors) if proto.HasField("initial") else None,
        part=get_part(proto.part, tensors) if proto.HasField("part") else None,
        vectors=check.names(proto.vectors, "VariableState.vectors", None) if proto.vectors else (),
        stage=n if 0 <= (n := proto.stage) <= MAX_NUMBER else check.count(n, "VariableState.stage"),
    )


def put_holding(message: ms.Holding, proto: spb.Holding, tensors: TensorSender) -> None:
    proto.worker = message.worker
    proto.block = message.block
    proto.start = message.start
    proto.position = message.position
    if message.cost_sum is not None:
        proto.cost_sum = message.cost_sum


def get_holding(proto: spb.Holding, tensors: TensorReceiver) -> ms.Holding:
    return ms.Holding(
        worker=proto.worker and check.answer_text(proto.worker, "Holding.worker"),
        block=n if 0 <= (n := proto.block) <= MAX_NUMBER else check.count(n, "Holding.block"),
        start=n if 0 <= (n := proto.start) <= MAX_NUMBER else check.count(n, "Holding.start"),
        position=n if 0 <= (n := proto.position) <= MAX_NUMBER else check.count(n, "Holding.position"),
        cost_sum=proto.cost_sum if proto.HasField("cost_sum") else None,
    )


def put_open_epoch(message: ms.OpenEpoch, proto: spb.OpenEpoch, tensors: TensorSender) -> None:
    proto.epoch = message.epoch
    proto.done = message.done
    proto.cost_sum = message.cost_sum
    proto.cost_examples = message.cost_examples
    proto.sums.extend(message.sums)


def get_open_epoch(proto: spb.OpenEpoch, tensors: TensorReceiver) -> ms.OpenEpoch:
    return ms.OpenEpoch(
        epoch=n if 1 <= (n := proto.epoch) <= MAX_NUMBER else check.positive(n, "OpenEpoch.epoch"),
        done=n if 0 <= (n := proto.done) <= MAX_NUMBER else check.count(n, "OpenEpoch.done"),
        cost_sum=proto.cost_sum,
        cost_examples=n if 0 <= (n := proto.cost_examples) <= MAX_NUMBER else check.count(n, "OpenEpoch.cost_examples"),
        sums=check.any_numbers(proto.sums, "OpenEpoch.sums", None) if proto.sums else (),
    )


def put_queue_state(message: ms.QueueState, proto: spb.QueueState, tensors: TensorSender) -> None:
    put_queue(message.spec, proto.spec, tensors)
    proto.handed_out = message.handed_out
    for holding in message.returned:
        put_holding(holding, proto.returned.add(), tensors)
    for holding in message.out:
        put_holding(holding, proto.out.add(), tensors)
    for open_epoch in message.open:
        put_open_epoch(open_epoch, proto.open.add(), tensors)
    for epoch_report in message.reports:
        put_epoch_report(epoch_report, proto.reports.add(), tensors)


def get_queue_state(proto: spb.QueueState, tensors: TensorReceiver) -> ms.QueueState:
    return ms.QueueState(
        spec=get_queue(proto.spec, tensors),
        handed_out=n if 0 <= (n := proto.handed_out) <= MAX_NUMBER else check.count(n, "QueueState.handed_out"),
        returned=check.parts(proto.returned, get_holding, tensors, "QueueState.returned", None)
        if proto.returned
        else (),
        out=check.parts(proto.out, get_holding, tensors, "QueueState.out", None) if proto.out else (),
        open=check.parts(proto.open, get_open_epoch, tensors, "QueueState.open", None) if proto.open else (),
        reports=check.parts(proto.reports, get_epoch_report, tensors, "QueueState.reports", None)
        if proto.reports
        else (),
    )


def put_last_epoch(message: ms.LastEpoch, proto: spb.LastEpoch, tensors: TensorSender) -> None:
    proto.worker = message.worker
    proto.epoch = message.epoch


def get_last_epoch(proto: spb.LastEpoch, tensors: TensorReceiver) -> ms.LastEpoch:
    return ms.LastEpoch(
        worker=check.name(proto.worker),
        epoch=n if 0 <= (n := proto.epoch) <= MAX_NUMBER else check.count(n, "LastEpoch.epoch"),
    )


def put_variable_changes(message: ms.VariableChanges, proto: spb.VariableChanges, tensors: TensorSender) -> None:
    proto.name = message.name
    proto.numbers.extend(message.numbers)


def get_variable_changes(proto: spb.VariableChanges, tensors: TensorReceiver) -> ms.VariableChanges:
    return ms.VariableChanges(
        name=check.name(proto.name),
        numbers=check.numbers(proto.numbers, "VariableChanges.numbers", None) if proto.numbers else (),
    )


def put_order_state(message: ms.OrderState, proto: spb.OrderState, tensors: TensorSender) -> None:
    proto.count = message.count
    for variable_changes in message.changes:
        put_variable_changes(variable_changes, proto.changes.add(), tensors)
    for change_id in message.undelivered:
        put_change_id(change_id, proto.undelivered.add(), tensors)


def get_order_state(proto: spb.OrderState, tensors: TensorReceiver) -> ms.OrderState:
    return ms.OrderState(
        count=n if 0 <= (n := proto.count) <= MAX_NUMBER else check.count(n, "OrderState.count"),
        changes=check.parts(
            proto.changes, get_variable_changes, tensors, "OrderState.changes", None, attrgetter("name")
        )
        if proto.changes
        else (),
        undelivered=check.parts(
            proto.undelivered,
            get_change_id,
            tensors,
            "OrderState.undelivered",
            None,
            attrgetter("sender.worker"),
            total="shards",
        )
        if proto.undelivered
        else (),
    )


def put_variable_group(message: ms.VariableGroup, proto: spb.VariableGroup, tensors: TensorSender) -> None:
    proto.names.extend(message.names)


def get_variable_group(proto: spb.VariableGroup, tensors: TensorReceiver) -> ms.VariableGroup:
    return ms.VariableGroup(
        names=check.names(proto.names, "VariableGroup.names", None) if proto.names else (),
    )


def put_out_portion(message: ms.OutPortion, proto: spb.OutPortion, tensors: TensorSender) -> None:
    proto.number = message.number
    proto.holders.extend(message.holders)


def get_out_portion(proto: spb.OutPortion, tensors: TensorReceiver) -> ms.OutPortion:
    return ms.OutPortion(
        number=n if 0 <= (n := proto.number) <= MAX_NUMBER else check.count(n, "OutPortion.number"),
        holders=check.names(proto.holders, "OutPortion.holders", None) if proto.holders else (),
    )


def put_worker_portions(message: ms.WorkerPortions, proto: spb.WorkerPortions, tensors: TensorSender) -> None:
    proto.worker = message.worker
    proto.left.extend(message.left)
    proto.claimed.extend(message.claimed)
    proto.had.extend(message.had)


def get_worker_portions(proto: spb.WorkerPortions, tensors: TensorReceiver) -> ms.WorkerPortions:
    return ms.WorkerPortions(
        worker=proto.worker and check.name_or_empty(proto.worker, "WorkerPortions.worker"),
        left=check.numbers(proto.left, "WorkerPortions.left", None) if proto.left else (),
        claimed=check.numbers(proto.claimed, "WorkerPortions.claimed", None) if proto.claimed else (),
        had=check.numbers(proto.had, "WorkerPortions.had", None) if proto.had else (),
    )


def put_portions_state(message: ms.PortionsState, proto: spb.PortionsState, tensors: TensorSender) -> None:
    for out_portion in message.out:
        put_out_portion(out_portion, proto.out.add(), tensors)
    for worker_portions in message.workers:
        put_worker_portions(worker_portions, proto.workers.add(), tensors)
    proto.losses.extend(message.losses)
    proto.alone.extend(message.alone)


def get_portions_state(proto: spb.PortionsState, tensors: TensorReceiver) -> ms.PortionsState:
    return ms.PortionsState(
        out=check.parts(proto.out, get_out_portion, tensors, "PortionsState.out", None) if proto.out else (),
        workers=check.parts(
            proto.workers, get_worker_portions, tensors, "PortionsState.workers", None, attrgetter("worker")
        )
        if proto.workers
        else (),
        losses=check.any_numbers(proto.losses, "PortionsState.losses", None) if proto.losses else (),
        alone=check.numbers(proto.alone, "PortionsState.alone", None) if proto.alone else (),
    )


def put_minimization_state(message: ms.MinimizationState, proto: spb.MinimizationState, tensors: TensorSender) -> None:
    proto.name = message.name
    if message.evaluation is not None:
        proto.evaluation.SetInParent()
        put_evaluation(message.evaluation, proto.evaluation, tensors)
    proto.counted.extend(message.counted)
    if message.portions is not None:
        proto.portions.SetInParent()
        put_portions_state(message.portions, proto.portions, tensors)
    proto.backups = message.backups
    proto.backups_won = message.backups_won
    proto.end = message.end
    if message.point is not None:
        proto.point.SetInParent()
        put_accepted_point(message.point, proto.point, tensors)
    if message.coordinator is not None:
        proto.coordinator.SetInParent()
        put_sender(message.coordinator, proto.coordinator, tensors)
    proto.term = message.term
    proto.note = message.note


def get_minimization_state(proto: spb.MinimizationState, tensors: TensorReceiver) -> ms.MinimizationState:
    return ms.MinimizationState(
        name=check.name(proto.name),
        evaluation=get_evaluation(proto.evaluation, tensors) if proto.HasField("evaluation") else None,
        counted=check.numbers(proto.counted, "MinimizationState.counted", None) if proto.counted else (),
        portions=get_portions_state(proto.portions, tensors) if proto.HasField("portions") else None,
        backups=n if 0 <= (n := proto.backups) <= MAX_NUMBER else check.count(n, "MinimizationState.backups"),
        backups_won=n
        if 0 <= (n := proto.backups_won) <= MAX_NUMBER
        else check.count(n, "MinimizationState.backups_won"),
        end=proto.end and check.result(proto.end, "MinimizationState.end"),
        point=get_accepted_point(proto.point, tensors) if proto.HasField("point") else None,
        coordinator=get_sender(proto.coordinator, tensors) if proto.HasField("coordinator") else None,
        term=n if 0 <= (n := proto.term) <= MAX_NUMBER else check.count(n, "MinimizationState.term"),
        note=proto.note and check.note(proto.note, "MinimizationState.note"),
    )


def put_shard_state(message: ms.ShardState, proto: spb.ShardState, tensors: TensorSender) -> None:
    proto.shard = message.shard
    proto.shards = message.shards
    proto.identity = message.identity
    proto.consistency = message.consistency
    proto.handling = message.handling
    proto.cut = message.cut
    proto.timeline = message.timeline
    proto.global_step = message.global_step
    proto.last_step = message.last_step
    proto.applied = message.applied
    proto.dropped = message.dropped
    proto.repeated = message.repeated
    proto.lost_pushes = message.lost_pushes
    put_membership_state(message.members, proto.members, tensors)
    for variable_state in message.variables:
        put_variable_state(variable_state, proto.variables.add(), tensors)
    for queue_state in message.queues:
        put_queue_state(queue_state, proto.queues.add(), tensors)
    for last_epoch in message.epochs:
        put_last_epoch(last_epoch, proto.epochs.add(), tensors)
    for staleness_count in message.stalenesses:
        put_staleness_count(staleness_count, proto.stalenesses.add(), tensors)
    for change in message.changes:
        put_change(change, proto.changes.add(), tensors)
    for place in message.places:
        put_place(place, proto.places.add(), tensors)
    proto.states.extend(message.states)
    for served_state in message.served:
        put_served_state(served_state, proto.served.add(), tensors)
    if message.order is not None:
        proto.order.SetInParent()
        put_order_state(message.order, proto.order, tensors)
    for variable_group in message.groups:
        put_variable_group(variable_group, proto.groups.add(), tensors)
    put_job(message.job, proto.job, tensors)
    for job_report in message.jobs:
        put_job_report(job_report, proto.jobs.add(), tensors)
    proto.stopped = message.stopped
    proto.max_gradient_norm = message.max_gradient_norm
    proto.clipped = message.clipped
    for minimization_state in message.minimizations:
        put_minimization_state(minimization_state, proto.minimizations.add(), tensors)
    proto.awaited = message.awaited


def get_shard_state(proto: spb.ShardState, tensors: TensorReceiver) -> ms.ShardState:
    return ms.ShardState(
        shard=check.below(proto.shard, proto.shards, "ShardState.shard", "shards"),
        shards=n if 1 <= (n := proto.shards) <= MAX_NUMBER else check.positive(n, "ShardState.shards"),
        identity=check.count(proto.identity, "ShardState.identity", check.LARGEST),
        consistency=proto.consistency and check.answer_text(proto.consistency, "ShardState.consistency"),
        handling=proto.handling and check.answer_text(proto.handling, "ShardState.handling"),
        cut=n if 0 <= (n := proto.cut) <= MAX_NUMBER else check.count(n, "ShardState.cut"),
        timeline=n if 0 <= (n := proto.timeline) <= MAX_NUMBER else check.count(n, "ShardState.timeline"),
        global_step=n if 0 <= (n := proto.global_step) <= MAX_NUMBER else check.count(n, "ShardState.global_step"),
        last_step=check.integer(proto.last_step, "ShardState.last_step", -1),
        applied=n if 0 <= (n := proto.applied) <= MAX_NUMBER else check.count(n, "ShardState.applied"),
        dropped=n if 0 <= (n := proto.dropped) <= MAX_NUMBER else check.count(n, "ShardState.dropped"),
        repeated=n if 0 <= (n := proto.repeated) <= MAX_NUMBER else check.count(n, "ShardState.repeated"),
        lost_pushes=n if 0 <= (n := proto.lost_pushes) <= MAX_NUMBER else check.count(n, "ShardState.lost_pushes"),
        members=get_membership_state(proto.members, tensors),
        variables=check.parts(
            proto.variables, get_variable_state, tensors, "ShardState.variables", None, attrgetter("spec.name")
        )
        if proto.variables
        else (),
        queues=check.parts(proto.queues, get_queue_state, tensors, "ShardState.queues", None, attrgetter("spec.name"))
        if proto.queues
        else (),
        epochs=check.parts(proto.epochs, get_last_epoch, tensors, "ShardState.epochs", None, attrgetter("worker"))
        if proto.epochs
        else (),
        stalenesses=check.parts(proto.stalenesses, get_staleness_count, tensors, "ShardState.stalenesses", None)
        if proto.stalenesses
        else (),
        changes=check.parts(proto.changes, get_change, tensors, "ShardState.changes", None) if proto.changes else (),
        places=check.parts(proto.places, get_place, tensors, "ShardState.places", None) if proto.places else (),
        states=check.numbers(proto.states, "ShardState.states", None, most=check.LARGEST) if proto.states else (),
        served=check.parts(proto.served, get_served_state, tensors, "ShardState.served", None) if proto.served else (),
        order=get_order_state(proto.order, tensors) if proto.HasField("order") else None,
        groups=check.parts(proto.groups, get_variable_group, tensors, "ShardState.groups", None)
        if proto.groups
        else (),
        job=get_job(proto.job, tensors),
        jobs=check.parts(proto.jobs, get_job_report, tensors, "ShardState.jobs", None) if proto.jobs else (),
        stopped=proto.stopped and check.answer_text(proto.stopped, "ShardState.stopped"),
        max_gradient_norm=proto.max_gradient_norm
        and check.answer_text(proto.max_gradient_norm, "ShardState.max_gradient_norm"),
        clipped=n if 0 <= (n := proto.clipped) <= MAX_NUMBER else check.count(n, "ShardState.clipped"),
        minimizations=check.parts(
            proto.minimizations, get_minimization_state, tensors, "ShardState.minimizations", None, attrgetter("name")
        )
        if proto.minimizations
        else (),
        awaited=n if 0 <= (n := proto.awaited) <= MAX_NUMBER else check.count(n, "ShardState.awaited"),
    )


def put_overdue(message: ms.Overdue, proto: spb.Overdue, tensors: TensorSender) -> None:
    proto.worker = message.worker
    proto.queue = message.queue


def get_overdue(proto: spb.Overdue, tensors: TensorReceiver) -> ms.Overdue:
    return ms.Overdue(
        worker=check.name(proto.worker),
        queue=check.name(proto.queue),
    )


def put_tick(message: ms.Tick, proto: spb.Tick, tensors: TensorSender) -> None:
    proto.lost.extend(message.lost)
    for overdue in message.overdue:
        put_overdue(overdue, proto.overdue.add(), tensors)
    proto.stalled.extend(message.stalled)
    proto.takers.extend(message.takers)
    proto.evaluators.extend(message.evaluators)
    proto.gives_up = message.gives_up


def get_tick(proto: spb.Tick, tensors: TensorReceiver) -> ms.Tick:
    return ms.Tick(
        lost=check.names(proto.lost, "Tick.lost", None) if proto.lost else (),
        overdue=check.parts(proto.overdue, get_overdue, tensors, "Tick.overdue", None) if proto.overdue else (),
        stalled=check.names(proto.stalled, "Tick.stalled", None) if proto.stalled else (),
        takers=check.names(proto.takers, "Tick.takers", None) if proto.takers else (),
        evaluators=check.names(proto.evaluators, "Tick.evaluators", None) if proto.evaluators else (),
        gives_up=proto.gives_up,
    )


#: The protobuf of each request and answer, and its functions.
ROWS = (
    Row(ms.Join, pb.JoinRequest, put_join_request, get_join_request, {"states": limits.MAX_SHARDS}),
    Row(ms.Joined, pb.JoinReply, put_join_reply, get_join_reply, {}),
    Row(ms.Renew, pb.RenewRequest, put_renew_request, get_renew_request, {}),
    Row(ms.Renewed, pb.RenewReply, put_renew_reply, get_renew_reply, {"written": limits.MAX_SHARDS}),
    Row(ms.Leave, pb.LeaveRequest, put_leave_request, get_leave_request, {}),
    Row(ms.Left, pb.LeaveReply, put_leave_reply, get_leave_reply, {}),
    Row(
        ms.Register,
        pb.RegisterRequest,
        put_register_request,
        get_register_request,
        {"declarations": limits.MAX_ENTRIES, "places": limits.MAX_ENTRIES, "states": limits.MAX_SHARDS},
    ),
    Row(
        ms.Registered,
        pb.RegisterReply,
        put_register_reply,
        get_register_reply,
        {"values": limits.MAX_ENTRIES, "behind": limits.MAX_ENTRIES},
    ),
    Row(
        ms.Pull,
        pb.PullRequest,
        put_pull_request,
        get_pull_request,
        {
            "names": limits.MAX_ENTRIES,
            "choices": limits.MAX_CHOICES,
            "known_versions": limits.MAX_ENTRIES,
            "after": limits.MAX_LISTED,
        },
    ),
    Row(ms.Pulled, pb.PullReply, put_pull_reply, get_pull_reply, {"values": limits.MAX_VALUES}),
    Row(
        ms.Push,
        pb.PushRequest,
        put_push_request,
        get_push_request,
        {
            "gradients": limits.MAX_ENTRIES,
            "pull": limits.MAX_ENTRIES,
            "known_versions": limits.MAX_ENTRIES,
            "shards": limits.MAX_SHARDS,
            "remote": limits.MAX_ENTRIES,
            "after": limits.MAX_LISTED,
            "progress": limits.MAX_LISTED,
        },
    ),
    Row(ms.Pushed, pb.PushReply, put_push_reply, get_push_reply, {"values": limits.MAX_ENTRIES}),
    Row(
        ms.Assign,
        pb.AssignRequest,
        put_assign_request,
        get_assign_request,
        {
            "assignments": limits.MAX_ENTRIES,
            "shards": limits.MAX_SHARDS,
            "remote": limits.MAX_ENTRIES,
            "after": limits.MAX_LISTED,
        },
    ),
    Row(ms.Assigned, pb.AssignReply, put_assign_reply, get_assign_reply, {"versions": limits.MAX_ENTRIES}),
    Row(
        ms.Tune,
        pb.TuneRequest,
        put_tune_request,
        get_tune_request,
        {"names": limits.MAX_ENTRIES, "fields": limits.MAX_ENTRIES},
    ),
    Row(ms.Tuned, pb.TuneReply, put_tune_reply, get_tune_reply, {}),
    Row(
        ms.Compute,
        pb.ComputeRequest,
        put_compute_request,
        get_compute_request,
        {"names": limits.MAX_ENTRIES, "operations": limits.MAX_OPERATIONS},
    ),
    Row(ms.Computed, pb.ComputeReply, put_compute_reply, get_compute_reply, {"results": limits.MAX_RESULTS}),
    Row(ms.Take, pb.TakeRequest, put_take_request, get_take_request, {}),
    Row(ms.Taken, pb.TakeReply, put_take_reply, get_take_reply, {"reports": limits.MAX_LISTED}),
    Row(ms.Evaluate, pb.EvaluateRequest, put_evaluate_request, get_evaluate_request, {}),
    Row(ms.Evaluated, pb.EvaluateReply, put_evaluate_reply, get_evaluate_reply, {}),
    Row(
        ms.TakePortion,
        pb.TakePortionRequest,
        put_take_portion_request,
        get_take_portion_request,
        {"holding": limits.MAX_HELD_PORTIONS, "withdrawn": limits.MAX_ENTRIES},
    ),
    Row(
        ms.PortionTaken,
        pb.TakePortionReply,
        put_take_portion_reply,
        get_take_portion_reply,
        {"stop": limits.MAX_HELD_PORTIONS},
    ),
    Row(ms.ClaimPortion, pb.ClaimPortionRequest, put_claim_portion_request, get_claim_portion_request, {}),
    Row(ms.PortionClaimed, pb.ClaimPortionReply, put_claim_portion_reply, get_claim_portion_reply, {}),
    Row(ms.Cut, pb.CutRequest, put_cut_request, get_cut_request, {}),
    Row(ms.CutReport, pb.CutReply, put_cut_reply, get_cut_reply, {}),
    Row(ms.Restore, pb.RestoreRequest, put_restore_request, get_restore_request, {}),
    Row(ms.Restored, pb.RestoreReply, put_restore_reply, get_restore_reply, {"cuts": limits.MAX_ENTRIES}),
    Row(ms.Barrier, pb.BarrierRequest, put_barrier_request, get_barrier_request, {}),
    Row(ms.Passed, pb.BarrierReply, put_barrier_reply, get_barrier_reply, {}),
    Row(ms.Stop, pb.StopRequest, put_stop_request, get_stop_request, {}),
    Row(ms.Stopped, pb.StopReply, put_stop_reply, get_stop_reply, {}),
    Row(ms.Reset, pb.ResetRequest, put_reset_request, get_reset_request, {}),
    Row(ms.Emptied, pb.ResetReply, put_reset_reply, get_reset_reply, {}),
    Row(
        ms.Intervene,
        pb.InterveneRequest,
        put_intervene_request,
        get_intervene_request,
        {"quarantine": limits.MAX_ENTRIES, "release": limits.MAX_ENTRIES},
    ),
    Row(
        ms.Intervened, pb.InterveneReply, put_intervene_reply, get_intervene_reply, {"quarantined": limits.MAX_ENTRIES}
    ),
    Row(ms.Status, pb.StatusRequest, put_status_request, get_status_request, {}),
    Row(
        ms.StatusReport,
        pb.StatusReply,
        put_status_reply,
        get_status_reply,
        {
            "variables": limits.MAX_ENTRIES,
            "workers": limits.MAX_LISTED,
            "epochs": limits.MAX_LISTED,
            "changes": limits.MAX_LISTED,
            "last_pushes": limits.MAX_LISTED,
            "queues": limits.MAX_LISTED,
            "jobs": limits.MAX_LISTED,
            "minimizations": limits.MAX_LISTED,
        },
    ),
)
