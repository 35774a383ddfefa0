"""One recorder of what a run does, below genesis.compile, growing networks, fuse() and export.

It numbers arrays as compilers number values, and notes each call with the numbers of its operands and results:

- A `Memory` is storage. Its `Kind` says where its contents come from: an input, a parameter, a buffer, a gradient from
  before the run, a constant that nobody declared, or the run itself. Its version counts changes in place.
- A `Value` is an array: its number, the memory that it shows, and the version of that memory when it was looked up. A
  view has a number of its own and the memory of its base. So (number, version) names contents, as in SSA form, and
  number alone names the array, as replays need it.
- A `Call` is one call: its op, its arguments with values in the places of arrays, its results, the values that it
  changed in place, and the user's line.
- A `Region` is the call of a module with all that was called inside of it; regions nest.

Identity is decided in `Values` alone. Arrays are found by their ids, and an id counts only while its array lives:
arrays are watched by weak references, and kept where there are none. A tensor is also known by its place in the graph,
which follows it through changes in place.

A `Recorder` listens in three places, in any combination: `tap()` notes the ops of a backend, on its handles;
`functions()` notes calls of `Function.apply`, on tensors; `regions()` notes calls of modules.

    graphs   tap()                     each op is checked as it comes, and becomes a line of the replay
    growth   functions(), regions()    the rules of channels are applied to the calls after the run
    fusion   tap(), regions()          what a module does with its layers is read off its region
    export   tap(), functions()        each value is said in ONNX by the outermost call that gave it and can be said
"""

from genesis.recording.calls import Call as Call
from genesis.recording.calls import Region as Region
from genesis.recording.calls import regions_in as regions_in
from genesis.recording.calls import values_in as values_in
from genesis.recording.recorder import Recorder as Recorder
from genesis.recording.values import Kind as Kind
from genesis.recording.values import Memory as Memory
from genesis.recording.values import Value as Value
from genesis.recording.values import Values as Values
