#include "kernels/ops/tuned_linears.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "kernels/core/error.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFirstWord = "plumbline-linears-1";

std::string value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value ? value : "";
}

fs::path cache_folder() {
  if (const std::string named = value_of("PLUMB_CACHE"); !named.empty()) return named;
  if (const std::string caches = value_of("XDG_CACHE_HOME"); !caches.empty()) {
    return fs::path(caches) / "plumbline";
  }
  const std::string home = value_of("HOME");
  return home.empty() ? fs::path() : fs::path(home) / ".cache" / "plumbline";
}

// FNV-1a: names a file, no more.
uint64_t hash_of(std::string_view words) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : words) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// What a file says is handed to a library: it is the user's own, or it is not read.
void require_own(const std::string& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) return;
  require<BadInput>(status.st_uid == ::getuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0,
                    file.c_str(), "belongs to user ", status.st_uid,
                    ", or others may write it: remove it, and run harness tune again");
}

}  // namespace

LinearShape linear_shape(const Tensor& out, const Tensor& weight, const Tensor& bias) {
  const int64_t outputs = weight.dim(0);
  return {out.dtype(), outputs > 0 ? out.numel() / outputs : 0, outputs, weight.dim(1),
          bias.defined()};
}

std::string to_string(const LinearShape& shape) {
  return text(name_of(shape.dtype), ' ', shape.rows, 'x', shape.outputs, 'x', shape.inner,
              shape.bias ? " with bias" : "");
}

std::string TunedLinears::file_of(const std::string& device) {
  const fs::path folder = cache_folder();
  if (folder.empty()) return {};
  std::ostringstream name;
  name << "linears-" << std::hex << hash_of(device) << ".txt";
  return folder / name.str();
}

void TunedLinears::set(const LinearShape& shape, std::optional<LinearWay> way) {
  if (way) ways_[shape] = *std::move(way);
  else ways_.erase(shape);
}

void TunedLinears::read(const std::string& file, const std::string& device) {
  std::ifstream in(file);
  if (!in) return;
  require_own(file);
  std::string line;
  if (!std::getline(in, line) || line != text(kFirstWord, ' ', device)) return;
  for (int number = 2; std::getline(in, line); ++number) {
    std::istringstream words(line);
    std::string dtype, bias;
    LinearShape shape;
    LinearWay way;
    words >> dtype >> shape.rows >> shape.outputs >> shape.inner >> bias >> way.kernel;
    const auto known = dtype_from_name(dtype);
    require<BadInput>(!words.fail() && known && (bias == "bias" || bias == "-"), file.c_str(),
                      "line ", number, " is \"", line,
                      "\", expected dtype rows outputs inner bias|- kernel [choice]: remove the "
                      "file, and run harness tune again");
    shape.dtype = *known;
    shape.bias = bias == "bias";
    words >> way.choice;
    ways_[shape] = way;
  }
}

void TunedLinears::write(const std::string& file, const std::string& device) const {
  const fs::path folder = fs::path(file).parent_path();
  std::error_code error;
  if (fs::create_directories(folder, error)) {
    fs::permissions(folder, fs::perms::owner_all, error);
  }
  const std::string partial = text(file, '.', ::getpid());
  std::ofstream out(partial);
  out << kFirstWord << ' ' << device << '\n';
  for (const auto& [shape, way] : ways_) {
    out << name_of(shape.dtype) << ' ' << shape.rows << ' ' << shape.outputs << ' ' << shape.inner
        << (shape.bias ? " bias " : " - ") << way.kernel
        << (way.choice.empty() ? "" : " " + way.choice) << '\n';
  }
  out.close();
  require<BadInput>(out.good(), file.c_str(), "cannot be written");
  fs::permissions(partial, fs::perms::owner_read | fs::perms::owner_write, error);
  fs::rename(partial, file);
}

}  // namespace plumb
