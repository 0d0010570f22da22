# Writes OUT: a table of FILES (paths, separated by commas) by name and text.
string(REPLACE "," ";" files "${FILES}")
set(table "")
foreach(file IN LISTS files)
  file(READ "${file}" text)
  cmake_path(GET file FILENAME name)
  string(APPEND table "    {\"${name}\", R\"code(${text})code\"},\n")
endforeach()
file(WRITE "${OUT}" "// Written by kernels/portable/embed.cmake.
#include \"kernels/portable/kernel_files.h\"

namespace plumb::portable {

const std::vector<KernelFile>& kernel_files() {
  static const std::vector<KernelFile> all = {
${table}  };
  return all;
}

}  // namespace plumb::portable
")
