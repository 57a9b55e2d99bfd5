"""The files of a Flower app, with ``<<name>>`` where something is to be filled in."""

PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "<<name>>"
version = "1.0.0"
description = "<<algorithm>> over nodes that keep their data, with fedslice"
license = "Apache-2.0"
dependencies = ["fedslice[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["<<package>>"]

[tool.flwr.app]
publisher = "fedslice"
fab-include = ["<<package>>/*.py"<<more>>]  # neither data nor results go to anybody

[tool.flwr.app.components]
serverapp = "<<package>>.server_app:app"
clientapp = "<<package>>.client_app:app"

# rounds: in all; started again, a run goes on.  nodes: how many are waited for before the first round.
# deadline: seconds that nodes have for an answer.  patience: seconds that they have to come at all.
# least: with fewer answers a round is thrown away and tried again (0: what the algorithm needs).
# spare: so many more are asked than are needed.  folder: the server's, on the SuperLink's machine.
# authenticated: the SuperLink lets in registered keys alone, so that names are theirs.
# trial: the server's noise comes from the seed, which everybody knows, to compare it with a simulation.
# publish: nodes are sent the trained model: no, held (the rows that they hold) or all.
[tool.flwr.app.config]
<<config>>
"""

METHOD = '''"""What is trained, and how: the same on the server and on every node."""

from fedslice.cli.deployment.recipe import recipe, sampling, telling
from <<module>> import <<function>>

MODEL = <<call>>
ALGORITHM = "<<algorithm>>"
SETTINGS = {
<<settings>>}
SAMPLER = sampling(ALGORITHM, SETTINGS)
HEAT = telling(SETTINGS)  # how nodes whose rows are hidden tell how many hold each


def algorithm(population):
    """For what nodes said of themselves (server), or for its own data (node).

    Your own is as good here: fs.recipes.fedsubavg(MODEL, optax.sgd(0.1), heat=population.heat(MODEL))
    """
    return recipe(ALGORITHM, MODEL, population, SETTINGS)
'''

SERVER_APP = '''"""The server: it knows what nodes say of themselves, and never opens a data file."""

from pathlib import Path

from flwr.serverapp import ServerApp

from fedslice.cli.deployment.recipe import serve
from <<package>>.method import HEAT, MODEL, SAMPLER, algorithm

app = ServerApp()


@app.main()
def main(grid, context):
    """Wait for the nodes, train, keep the model."""
    serve(grid, context.run_config, MODEL, algorithm, SAMPLER, HEAT, Path(__file__).parent)
'''

CLIENT_APP = '''"""A node: a new process for every letter, with its own data and its own memory."""

from fedslice.deploy.flower import client_app
from <<package>>.method import HEAT, algorithm

# Data that are not a folder as fedslice.deploy.own.write makes it: client_app(algorithm, read), where
# read(path) gives a fedslice.Population of one client.
app = client_app(algorithm, heat=HEAT)
'''

CLIENT_APP_OF_FILES = '''"""A node: a new process for every letter, with its own data and its own memory."""

from fedslice.deploy import own
from fedslice.deploy.flower import client_app
from <<package>>.method import HEAT, algorithm

# A node's own file becomes ids by vocabulary.json: fedslice deploy data APP FILE NODE.  This is its digest.
app = client_app(algorithm, own.reader("<<digest>>"), heat=HEAT)
'''

README = """# <<algorithm>> over <<nodes>> nodes

Try it on this machine, with a SuperLink and <<nodes>> SuperNodes on the loopback:

    fedslice deploy local <<folder>>

On several machines: <<whence>>. On the server's machine, with a certificate for its name:

    flower-superlink --host 0.0.0.0 --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key \\
        --enable-supernode-auth --disable-runtime-dependency-installation

On each node, with a key of its own that the server's operator registered (flwr supernode register):

    flower-supernode --superlink SERVER:8000 --root-certificates ca.crt --auth-supernode-private-key node.key \\
        --node-config 'name="node-0" folder="/path/to/nodes/0"'

Then, where you give orders (a connection `mine` in Flower's configuration says where the SuperLink is):

    flwr run <<folder>> mine --stream --run-config 'authenticated=true folder="/path/on/the/server"'

fedslice's page docs/how-to/deploy.md tells it step by step.
"""

GIVEN = "`nodes/I` goes to the machine of node I, and nowhere else"
BROUGHT = """each node's owner writes its own file into its folder, on its machine, with this app's vocabulary,

    fedslice deploy data <<folder>> clicks.csv /path/to/nodes/0 --number 0

(to try it here, into nodes/0, nodes/1, ... of this folder)"""
