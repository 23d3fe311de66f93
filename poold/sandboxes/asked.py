"""From a request to the sandbox that it asks for, before anything is done for it."""

from contract.models import Caller, CreateSandbox, Rules, Sandbox, Shape
from contract.states import State
from contract.workspaces import Workspace
from poold.sandboxes.means import Means
from poold.sandboxes.network import asked_network


def shape_of(means: Means, request: CreateSandbox, default_image: str) -> Shape:
    """What the request says, over what its image says."""
    image = default_image if request.image is None else request.image
    defaults = means.images.find(image).defaults
    return Shape(
        image=image,
        vcpus=request.vcpus or defaults.vcpus,
        memory_mb=request.memory_mb or defaults.memory_mb,
        disk_mb=request.disk_mb or defaults.disk_mb,
    )


def new_sandbox(
    means: Means,
    request: CreateSandbox,
    shape: Shape,
    caller: Caller,
    rules: Rules,
    *,
    sandbox_id: str,
    workspace: Workspace | None = None,
) -> Sandbox:
    """A sandbox that is not in the ledger yet."""
    now_ms = means.sources.now_ms()
    of_image = means.images.find(shape.image).network
    network, within = asked_network(request, caller, of_image, is_enforced=means.pool.engine.isolates)
    return Sandbox(
        id=sandbox_id,
        state=State.PENDING,
        shape=shape,
        metadata=request.metadata,
        created_ms=now_ms,
        expires_ms=now_ms + 1000 * rules.timeout_sec,
        rules=rules,
        owner=caller.owner,
        public_ports=request.public_ports,
        network=network,
        within=within,
        workspace=workspace,
    )
