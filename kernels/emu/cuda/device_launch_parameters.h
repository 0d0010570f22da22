#pragma once
#include "kernels/emu/cuda/cuda_runtime.h"
