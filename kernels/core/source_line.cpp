#include "kernels/core/source_line.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <mutex>

#include "kernels/core/error.h"

namespace plumb {
namespace {

std::string shell_quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string without_folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

// addr2line's "file:line", or nothing. Of the functions that were inlined here, innermost first,
// the first that is not of gpu.h or gpu_emu.h: a vector's load is the business of the line that
// loads.
std::string ask_addr2line(const char* binary, uintptr_t offset) {
  char address[32];
  std::snprintf(address, sizeof address, "%lx", static_cast<unsigned long>(offset));
  const std::string command =
      "addr2line -i -e " + shell_quoted(binary) + ' ' + address + " 2>/dev/null";
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return "";
  std::string out;
  char line[1024];
  while (std::fgets(line, sizeof line, pipe)) {
    const std::string frame = without_folder(line);
    out = frame.substr(0, frame.find_first_of(" \n"));  // " (discriminator 3)"
    if (out.rfind("gpu.h:", 0) != 0 && out.rfind("gpu_emu.h:", 0) != 0) break;
  }
  pclose(pipe);
  return out.find('?') == std::string::npos ? out : "";
}

struct Search {
  uint32_t low_bits;
  uintptr_t found;
};

int search_image(dl_phdr_info* image, size_t, void* argument) {
  auto& search = *static_cast<Search*>(argument);
  for (int i = 0; i < image->dlpi_phnum; ++i) {
    const auto& segment = image->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || !(segment.p_flags & PF_X)) continue;
    const uintptr_t begin = image->dlpi_addr + segment.p_vaddr;
    uintptr_t at = (begin & ~uintptr_t{0xffffffff}) | search.low_bits;
    if (at < begin) at += uintptr_t{1} << 32;
    if (at < begin + segment.p_memsz) {
      search.found = at;
      return 1;
    }
  }
  return 0;
}

std::string find_source_line(const void* return_address) {
  const auto at = reinterpret_cast<uintptr_t>(return_address) - 1;
  Dl_info image{};
  void* extra = nullptr;
  if (!dladdr1(reinterpret_cast<void*>(at), &image, &extra, RTLD_DL_LINKMAP)) {
    return text("address ", return_address);
  }
  const auto* map = static_cast<const link_map*>(extra);
  // The program itself is best found through /proc; its name may be relative.
  const bool program = map && (!map->l_name || !map->l_name[0]);
  const uintptr_t load = map ? map->l_addr : 0;
  char self[4096] = "/proc/self/exe";
  if (program) {
    // addr2line would take /proc/self for itself.
    std::snprintf(self, sizeof self, "/proc/%ld/exe", static_cast<long>(getpid()));
  }
  const std::string line = ask_addr2line(program ? self : image.dli_fname, at - load);
  if (!line.empty()) return line;
  if (image.dli_sname) {
    return text(image.dli_sname, "+", at - reinterpret_cast<uintptr_t>(image.dli_saddr));
  }
  return text(without_folder(image.dli_fname), "+", at - load);
}

}  // namespace

// A fault that every checkpoint meets asks for the same line each time, and addr2line is slow.
std::string source_line(const void* return_address) {
  static std::mutex mutex;
  static std::map<const void*, std::string> known;
  const std::lock_guard lock(mutex);
  const auto [found, added] = known.try_emplace(return_address);
  if (added) found->second = find_source_line(return_address);
  return found->second;
}

std::string source_line_of_low_bits(uint32_t low_bits) {
  Search search{low_bits, 0};
  dl_iterate_phdr(search_image, &search);
  if (!search.found) return "an unknown place";
  return source_line(reinterpret_cast<const void*>(search.found));
}

}  // namespace plumb
