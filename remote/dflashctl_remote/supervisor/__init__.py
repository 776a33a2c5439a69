"""What watches over a job on a host: POSIX sh and nothing else, so that it runs wherever there is a shell.

The operator's side sends proc.sh and lease.sh with its own scripts; supervise.sh and pump.sh run from the bundle.
"""
