# cmake --install: the binary, what plugins are built against (find_package(Plumbline)), and the
# recordings that the binary looks for by default. Components: runtime, development, recordings.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(headers "${CMAKE_INSTALL_INCLUDEDIR}/plumbline")
set(package "${CMAKE_INSTALL_LIBDIR}/cmake/Plumbline")
# The plugin's interface, what kernels of the emulated GPU include, and the judge's library.
foreach(header
    harness/capi/plumbline_judge.h
    kernels/plugin.h kernels/core/dtype.h kernels/core/error.h kernels/emu/emulator.h kernels/gpu/gpu.h
    kernels/gpu/gpu_cuda.h kernels/gpu/gpu_emu.h kernels/gpu/gpu_hip.h)
  cmake_path(GET header PARENT_PATH folder)
  install(FILES "${header}" DESTINATION "${headers}/${folder}" COMPONENT development)
endforeach()
install(DIRECTORY kernels/emu/cuda DESTINATION "${headers}/kernels/emu" COMPONENT development)
configure_package_config_file(ci/cmake/PlumblineConfig.cmake.in
  "${CMAKE_BINARY_DIR}/PlumblineConfig.cmake"
  INSTALL_DESTINATION "${package}"
  PATH_VARS headers CMAKE_INSTALL_BINDIR)
write_basic_package_version_file("${CMAKE_BINARY_DIR}/PlumblineConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${CMAKE_BINARY_DIR}/PlumblineConfig.cmake" "${CMAKE_BINARY_DIR}/PlumblineConfigVersion.cmake"
  DESTINATION "${package}" COMPONENT development)
install(DIRECTORY fixtures DESTINATION "${CMAKE_INSTALL_DATADIR}/plumbline" COMPONENT recordings)
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DATADIR}/plumbline" COMPONENT runtime)
