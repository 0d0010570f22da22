"""Quantised weights: what their codes mean, for kernels that have no torch code to be judged by.

check(my_kernel, like=quantised.linear("gptq"), inputs=(x, qweight, scales, qzeros, g_idx))
"""

from .weights import FORMATS as FORMATS
from .weights import RECIPES as RECIPES
from .weights import dequantize as dequantize
from .weights import linear as linear
from .weights import names_of as names_of
