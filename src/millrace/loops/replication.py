"""What a function that runs as several replicas may ask: which one it is, and how many there are.

replication_index()                 0 .. replicas() - 1
in_replica(index, count)            says so, for whoever runs replicas in another way
"""

from millrace.loops.replicated_function import cross_replica_mean as cross_replica_mean
from millrace.loops.replicated_function import cross_replica_sum as cross_replica_sum
from millrace.loops.replicated_function import in_replica as in_replica
from millrace.loops.replicated_function import replicas as replicas
from millrace.loops.replicated_function import replication_index as replication_index
