# SPDX-License-Identifier: Apache-2.0
"""heed beside other implementations of attention on one machine: what `bench/peers.py` is made of."""
