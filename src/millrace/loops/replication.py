"""What a function that runs as several replicas may ask: which one it is, and how many there are.

replication_index()                 0 .. replicas() - 1
in_replica(index, count)            says so, for whoever runs replicas in another way
"""

from millrace.programs.replication import cross_replica_mean as cross_replica_mean
from millrace.programs.replication import cross_replica_sum as cross_replica_sum
from millrace.programs.replication import in_replica as in_replica
from millrace.programs.replication import replicas as replicas
from millrace.programs.replication import replication_index as replication_index
