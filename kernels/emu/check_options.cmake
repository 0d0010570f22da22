# How kernels are compiled for emu-check: the compiler announces every access; kernels/emu answers instead of
# the compiler's own library. Line numbers are part of the messages; -O1 halves the time of compilation, and the
# calls dominate that of the runs.
set(PLUMB_EMU_CHECK_OPTIONS -fno-sanitize=address -fsanitize=thread -g1 -O1)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  list(APPEND PLUMB_EMU_CHECK_OPTIONS --param=tsan-instrument-func-entry-exit=0)
else()
  list(APPEND PLUMB_EMU_CHECK_OPTIONS "SHELL:-mllvm -tsan-instrument-func-entry-exit=0")
endif()
# Indices of local arrays. The recovering form calls a handler that the undefined-behaviour sanitizer, which host
# code may be built with, does not use.
list(APPEND PLUMB_EMU_CHECK_OPTIONS -fsanitize=bounds -fsanitize-recover=bounds)
