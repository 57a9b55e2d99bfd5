"""The named algorithms, each made of public parts: ``help(fs.recipes.fedavg)`` tells all of one.

All have one shape, ``recipe(model, optimizer, work, *, ...)``; those that exist for SGD alone take
its rate in place of the optimizer, FedSGD has no local steps and FedPA samples in theirs.  This is
also the order in which ``fedslice algorithms`` lists them; a new one is a line here.
"""
# ruff: noqa: I001 (the order is that of the listing)

from fedslice.recipes.averaging import fedavg as fedavg
from fedslice.recipes.averaging import fedsubavg as fedsubavg
from fedslice.recipes.averaging import fedsgd as fedsgd
from fedslice.recipes.averaging import central as central
from fedslice.recipes.uneven import fedprox as fedprox
from fedslice.recipes.uneven import fednova as fednova
from fedslice.recipes.extrapolation import fedexp as fedexp
from fedslice.recipes.variates import scaffold as scaffold
from fedslice.recipes.variates import scaffold_heat as scaffold_heat
from fedslice.recipes.variates import scaffold_approximate as scaffold_approximate
from fedslice.recipes.surveys import mime as mime
from fedslice.recipes.surveys import mimelite as mimelite
from fedslice.recipes.surveys import feddane as feddane
from fedslice.recipes.duals import feddyn as feddyn
from fedslice.recipes.duals import fedpd as fedpd
from fedslice.recipes.composite import fedpa as fedpa
from fedslice.recipes.composite import fedmid as fedmid
from fedslice.recipes.composite import feddualavg as feddualavg
from fedslice.recipes.fairness import qffl as qffl
from fedslice.recipes.fairness import afl as afl
from fedslice.recipes.fairness import superquantile as superquantile
from fedslice.recipes.fairness import ifca as ifca
from fedslice.recipes.adapting import fedrecon as fedrecon
from fedslice.recipes.adapting import maml as maml
from fedslice.recipes.adapting import reptile as reptile
from fedslice.recipes.keeping import ditto as ditto
from fedslice.recipes.keeping import fedper as fedper
