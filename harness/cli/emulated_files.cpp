#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "harness/cli/emulated_source.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;

std::string content_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw BadInput(text("[plugin-flags] ", file.string(), ": cannot be read"));
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

// A file and, once each, those that it includes.
class SourceWriter {
 public:
  explicit SourceWriter(const fs::path& folder) : folder_(fs::absolute(folder)) {
    fs::create_directories(folder_);
  }

  fs::path write(const fs::path& file, bool first) {
    const fs::path source = fs::canonical(file);
    const auto known = written_.find(source);
    if (known != written_.end()) return known->second;
    const std::string name = source.filename().string() + (first ? ".cpp" : ".h");
    const fs::path to = folder_ / text(written_.size(), "_", name);
    written_[source] = to;
    const auto included = [&](const std::string& quoted) {
      const fs::path beside = source.parent_path() / quoted;
      return fs::is_regular_file(beside) ? write(beside, false).string() : std::string();
    };
    const std::string code = emulated_source(content_of(source), source.string(), included);
    std::ofstream out(to, std::ios::binary);
    if (first) out << "#include \"kernels/emu/cuda/cuda_runtime.h\"\n";
    out << "#line 1 \"" << source.string() << "\"\n" << code;
    if (!out.flush()) throw BadInput(text("[plugin-flags] ", to.string(), ": cannot be written"));
    return to;
  }

 private:
  fs::path folder_;
  std::map<fs::path, fs::path> written_;
};

}  // namespace

fs::path write_emulated(const fs::path& file, const fs::path& folder) {
  if (!fs::is_regular_file(file))
    throw BadInput(text("[plugin-flags] ", file.string(), " is not a file"));
  return SourceWriter(folder).write(file, true);
}

}  // namespace plumb::harness
