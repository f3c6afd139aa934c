"""One run on many machines: a driver cuts it into shards, each an ordinary run (`--shard I/N`) on a node of a Ray
cluster, and gathers what they write into one directory.

    driver  --hires-->  host (an actor of Ray on a node)  --starts-->  leash  -->  python -m fuzz run --resume SHARD
       ^                  |
       +-- journal lines --+  as they are written, evidence of failures when it is complete

A shard is done from its journals, so that one whose node was lost goes on elsewhere from what had come to the driver,
and a driver that was lost goes on with all of them. docs/scale.md says how far this goes.
"""
