"""Every operation of the gateway, in the order of the page. The app serves these and no others; a test compares."""

from gateway.operations.browser import BROWSER
from gateway.operations.inside import INSIDE
from gateway.operations.jobs import JOBS
from gateway.operations.network import NETWORK
from gateway.operations.operating import OPERATING, PAGES
from gateway.operations.operation import Operation
from gateway.operations.sandboxes import SANDBOXES
from gateway.operations.tasks import TASKS
from gateway.operations.workspaces import WORKSPACES

__all__ = ["OPERATIONS", "Operation"]

OPERATIONS: tuple[Operation, ...] = (
    *(*SANDBOXES, *INSIDE, *BROWSER, *NETWORK, *WORKSPACES),
    *(*TASKS, *JOBS),
    *(*OPERATING, *PAGES),
)
