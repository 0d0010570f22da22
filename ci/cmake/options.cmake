# Build options and the compiler settings that every target shares.
foreach(backend ONEDNN CUDA HIP OPENCL VULKAN)
  set(PLUMB_${backend} AUTO CACHE STRING "Build the ${backend} backend: AUTO (if found), ON (an error if not) or OFF")
  set_property(CACHE PLUMB_${backend} PROPERTY STRINGS AUTO ON OFF)
  if(NOT PLUMB_${backend} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "PLUMB_${backend} is '${PLUMB_${backend}}', expected AUTO, ON or OFF")
  endif()
endforeach()
option(PLUMB_TESTS "Build the tests" ON)
if(PLUMB_TESTS)
  enable_testing()
endif()
option(PLUMB_FUZZ "Build the libFuzzer targets alone, which needs Clang" OFF)
set(PLUMB_SANITIZE "" CACHE STRING "Sanitizers: address;undefined or thread")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)  # the libraries are also in libplumbline_judge.so
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
# FMA contraction across rounding points would change what a contract says; kernels that want it say so.
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-ffp-contract=off>")
# GCC's vectoriser of straight code drops roundings to float between sums in double (seen in GCC 12;
# tests/kernels/roundings_test.cpp): the emulated GPU would add up more exactly than a real one.
add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-tree-slp-vectorize>")
include_directories("${CMAKE_SOURCE_DIR}")
# Several files compiled as one take less time: they share headers and templates. GCC then takes a
# class with a member of an unnamed namespace for one of a header.
if(CMAKE_UNITY_BUILD)
  add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>")
endif()
foreach(sanitizer IN LISTS PLUMB_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${sanitizer};-fno-omit-frame-pointer;-fno-sanitize-recover=all>")
  add_link_options(-fsanitize=${sanitizer})
endforeach()
find_program(PLUMB_CCACHE ccache)
mark_as_advanced(PLUMB_CCACHE)
if(PLUMB_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The list of headers comes from the compiler itself, without a run of the preprocessor first
  # (CCACHE_DEPEND); precompiled headers need the rest. Here, so that no machine has to be set up for it.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_DEPEND=1
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime "${PLUMB_CCACHE}")
endif()

option(PLUMB_PCH "Precompiled headers: half of what the small files take to compile" ON)
# plumb_precompile(TARGET HEADERS...): of the standard library, and further ones in quotes or brackets.
# No file may rely on them: every file includes what it uses.
function(plumb_precompile target)
  if(NOT PLUMB_PCH)
    return()
  endif()
  target_precompile_headers(${target} PRIVATE
    <algorithm> <array> <chrono> <cmath> <cstdint> <cstring> <filesystem> <functional> <iostream> <limits> <map>
    <memory> <numeric> <optional> <set> <sstream> <string> <string_view> <utility> <vector> ${ARGN})
endfunction()

# plumb_optimise_less(TARGET): for code whose speed does not matter, in a release build.
function(plumb_optimise_less target)
  target_compile_options(${target} PRIVATE "$<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>")
endfunction()
