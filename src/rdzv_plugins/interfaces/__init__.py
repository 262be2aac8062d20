"""What a backend is made of, and what is passed to it. Nothing here imports torch.

``RendezvousHandler`` and ``RendezvousBackend`` have the methods of the classes of those names in
``torch.distributed.elastic.rendezvous``: a torch handler is accepted as it is, and ours can be given
to torch's elastic agent as they are.

Import everything from here; each concept has its own file.
"""

from rdzv_plugins.capabilities import Capability as Capability
from rdzv_plugins.interfaces.backend import Backend as Backend
from rdzv_plugins.interfaces.backend import Created as Created
from rdzv_plugins.interfaces.handler import RendezvousHandler as RendezvousHandler
from rdzv_plugins.interfaces.handler import RendezvousInfo as RendezvousInfo
from rdzv_plugins.interfaces.handler import StoreAddress as StoreAddress
from rdzv_plugins.interfaces.handler import TorchHandler as TorchHandler
from rdzv_plugins.interfaces.holding import Holding as Holding
from rdzv_plugins.interfaces.node import Node as Node
from rdzv_plugins.interfaces.node_check import NodeCheck as NodeCheck
from rdzv_plugins.interfaces.outcome import Failure as Failure
from rdzv_plugins.interfaces.outcome import Outcome as Outcome
from rdzv_plugins.interfaces.request import DEFAULT_RUN_ID as DEFAULT_RUN_ID
from rdzv_plugins.interfaces.request import Request as Request
from rdzv_plugins.interfaces.round_event import RoundEvent as RoundEvent
from rdzv_plugins.interfaces.round_event import TellEvent as TellEvent
from rdzv_plugins.interfaces.service_check import ServiceCheck as ServiceCheck
from rdzv_plugins.interfaces.state_backend import RendezvousBackend as RendezvousBackend
from rdzv_plugins.interfaces.state_backend import SharesStore as SharesStore
from rdzv_plugins.interfaces.state_backend import Token as Token
