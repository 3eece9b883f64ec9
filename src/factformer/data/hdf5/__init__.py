"""Reading HDF5 files in The Well's layout: `SplitFile` is one file, `Source` one array of it."""

from factformer.data.hdf5.marks import is_ours as is_ours
from factformer.data.hdf5.marks import said_split as said_split
from factformer.data.hdf5.split_file import SplitFile as SplitFile
from factformer.data.hdf5.split_file import Statistics as Statistics
