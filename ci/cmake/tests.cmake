# plumb_add_test(NAME SOURCES...): a Catch2 program; each of its test cases is a test of ctest, run from
# the project's root. A test case that prints "skipped: <reason>", and then must do nothing else, is
# reported as skipped: Catch2 2 has no word for it. Its label is the folder's name: `ctest -L faults`.
find_package(Catch2 REQUIRED)
list(APPEND CMAKE_MODULE_PATH "${Catch2_DIR}")
include(Catch)

# Catch2 2 calls it a success when a name (say, with a semicolon in it) matches no test case.
set(plumb_no_match_fails)
if(Catch2_VERSION VERSION_LESS 3)
  set(plumb_no_match_fails EXTRA_ARGS --warn NoTests)
endif()

function(plumb_add_test name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE Catch2::Catch2WithMain)
  plumb_optimise_less(${name})
  # Files of tests have constants of their own by plain names: kTokens, kHeads.
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  plumb_precompile(${name} "${CMAKE_SOURCE_DIR}/tests/catch.h")
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${name} PRIVATE -Wno-restrict)  # GCC 12 warns about std::string itself
  endif()
  get_filename_component(folder "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
  catch_discover_tests(${name} TEST_PREFIX "${name}." ${plumb_no_match_fails}
    WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}" PROPERTIES
    LABELS "${folder}"
    SKIP_REGULAR_EXPRESSION "skipped: "
    TIMEOUT 1200)  # a hang; fault tests take minutes under ASan
endfunction()
