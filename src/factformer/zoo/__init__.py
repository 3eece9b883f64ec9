"""The zoo: bundles that are found by name, here or at the address of an index, and fetched with their checksums."""
