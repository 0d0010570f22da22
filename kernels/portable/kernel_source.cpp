// A kernel's text: its file, with what it includes in place.
#include <map>

#include "kernels/core/error.h"
#include "kernels/portable/driver.h"
#include "kernels/portable/kernel_files.h"

namespace plumb::portable {
namespace {

const char* text_of(const std::string& name) {
  for (const KernelFile& file : kernel_files()) {
    if (file.name == name) return file.text;
  }
  throw DeviceError(text("[portable] this build has no ", name));
}

std::string expanded(const std::string& file) {
  std::string out = text_of(file);
  const std::string word = "#include \"";
  for (size_t at = out.find(word); at != std::string::npos; at = out.find(word, at)) {
    const size_t begin = at + word.size(), end = out.find('"', begin);
    out.replace(at, end + 1 - at, expanded(out.substr(begin, end - begin)));
  }
  return out;
}

struct Expanded {
  std::string name, text;
  KernelSource source;
};

std::unique_ptr<Expanded> make(const std::string& name) {
  auto out = std::make_unique<Expanded>();
  out->name = name;
  out->text = expanded(name + ".k");
  const std::string word = "#define THREADS ";
  const int threads = std::stoi(out->text.substr(out->text.find(word) + word.size()));
  out->source = {out->name.c_str(), threads, out->text.c_str()};
  return out;
}

}  // namespace

const KernelSource& kernel_source(const std::string& name) {
  static std::map<std::string, std::unique_ptr<Expanded>> all;
  std::unique_ptr<Expanded>& found = all[name];
  if (!found) found = make(name);
  return found->source;
}

}  // namespace plumb::portable
