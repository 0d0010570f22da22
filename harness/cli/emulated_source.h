// A plain CUDA file as C++ for the emulated GPU: what kernels/emu/cuda cannot define as functions.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace plumb::harness {

// `text` with kernel<<<grid, block>>>(x) as a call of launch(), with __shared__ variables as
// references to the block's, and with other names in quoted includes where `included` gives some.
// Lines keep their numbers. Throws BadInput, "file:line: ...", for what it cannot read.
std::string emulated_source(const std::string& text, const std::string& file,
                            const std::function<std::string(const std::string& name)>& included);

// Writes that of a file, and of the files that it includes from its folder, to `folder`; returns
// the path of the file's own.
std::filesystem::path write_emulated(const std::filesystem::path& file,
                                     const std::filesystem::path& folder);

}  // namespace plumb::harness
