// harness plugin-flags: what the compiler needs to build a plugin for a device.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>

#include "harness/cli/cli.h"
#include "harness/cli/emulated_source.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;

// The folder with kernels/plugin.h: the checkout that this was built from, or
// PREFIX/include/plumbline.
std::string headers() {
  std::error_code ignored;
  const fs::path source = PLUMB_SOURCE_DIR;
  const fs::path prefix = fs::read_symlink("/proc/self/exe", ignored).parent_path().parent_path();
  const fs::path installed = prefix / "include" / "plumbline";
  for (const fs::path& folder : {source, installed}) {
    if (fs::is_regular_file(folder / "kernels" / "plugin.h", ignored)) return folder.string();
  }
  throw UsageError(text("[plugin-flags] kernels/plugin.h is neither in ", source.string(),
                        " nor in ", installed.string(),
                        "; install the headers with cmake --install"));
}

// For cc, c++, nvcc or hipcc. The emulator's kernels are compiled as this binary's own were.
std::string flags_for(const std::string& kind) {
  constexpr const char* kEmulated =
      "-std=c++20 -ffp-contract=off -fno-tree-slp-vectorize -Wno-unknown-pragmas ";
  if (kind == "cuda") return "-std=c++20 -O3 --extended-lambda -arch=native -Xcompiler=-fPIC -x cu";
  if (kind == "hip") return "-std=c++20 -O3 -fPIC -x hip";
  if (kind == "emu") return text("-O2 -fPIC ", kEmulated, "-x c++");
  // Without default libraries: the sanitizer's, whose calls this binary answers, would be among
  // them.
  if (kind == "emu-check")
    return text("-fPIC -nodefaultlibs ", kEmulated, PLUMB_EMU_CHECK_FLAGS,
                " -DPLUMB_EMU_CHECK -x c++");
  require(kind == "cpu", "--device", "no plugin is built for a device of kind \"", kind,
          "\"; known: cpu, emu, emu-check, cuda, hip");
  return "-O2 -fPIC";
}

// Where what a compiler is given instead of a source goes: below the current folder, as ci/verify's
// and the reports' files.
constexpr const char* kFolder = ".plumbline/emulated";

// What compiles a file of plain CUDA, its path at the end.
std::string source_flags(const std::string& kind, const std::string& source) {
  if (kind != "emu" && kind != "emu-check") return source;
  const fs::path root = headers(), file = source;
  const fs::path written = write_emulated(file, fs::path(kFolder) / file.stem());
  const fs::path beside = fs::absolute(file).parent_path();
  return text("-I", (root / "kernels" / "emu" / "cuda").string(), " -I", beside.string(),
              " -x c++ ", written.string());
}

}  // namespace

Action add_plugin_flags(CLI::App& app) {
  auto device = std::make_shared<std::string>(), source = std::make_shared<std::string>();
  app.add_option("--device", *device, "whose ops the plugin replaces: cpu, emu:64, cuda:0, ...")
      ->required();
  app.add_option(
      "--source", *source,
      "a file of plain CUDA (__global__, threadIdx, <<<>>>), to be compiled as it is; for an "
      "emulated device a copy in .plumbline/emulated is");
  return [device, source] {
    const std::string kind = device->substr(0, device->find(':'));
    std::cout << "-shared -I" << headers() << " -DPLUMB_DEVICE=\"" << *device << "\" "
              << flags_for(kind);
    if (!source->empty()) std::cout << ' ' << source_flags(kind, *source);
    std::cout << '\n';
    return 0;
  };
}

}  // namespace plumb::harness
