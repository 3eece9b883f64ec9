"""Writing the HDF5 file of one split: `SplitWriter` is the file, `BatchWriter` some trajectories of it."""

from factformer.data.writer.batch import BatchWriter as BatchWriter
from factformer.data.writer.part import Share as Share
from factformer.data.writer.split import SplitWriter as SplitWriter
