"""`python -m nproxy` is the command `nproxy`."""

from nproxy.cli import main

main()
