# SPDX-License-Identifier: Apache-2.0
"""The part of flash_attn.layers that models import."""
