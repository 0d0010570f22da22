# cmake --install: the binary, the headers, and the recordings that the binary looks for by default.
include(GNUInstallDirs)
install(DIRECTORY kernels blocks harness
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/plumbline" FILES_MATCHING PATTERN "*.h")
install(DIRECTORY fixtures DESTINATION "${CMAKE_INSTALL_DATADIR}/plumbline")
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DATADIR}/plumbline")
