// The files of this folder that kernels are made of, as the build embedded them.
#pragma once

#include <vector>

namespace plumb::portable {

struct KernelFile {
  const char* name;  // "rms_norm.k"
  const char* text;
};
const std::vector<KernelFile>& kernel_files();

}  // namespace plumb::portable
