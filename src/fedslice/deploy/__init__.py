"""The same algorithm over nodes that hold their own data; everything between them is bytes."""

from fedslice.deploy.coordinator import Coordinator as Coordinator
from fedslice.deploy.counting import collect as collect
from fedslice.deploy.link import InProcess as InProcess
from fedslice.deploy.link import Link as Link
from fedslice.deploy.node import Node as Node
from fedslice.deploy.program import Program as Program
from fedslice.deploy.program import columns_of as columns_of
from fedslice.deploy.report import Report as Report
from fedslice.deploy.schema import Schema as Schema
from fedslice.deploy.schema import register as register
