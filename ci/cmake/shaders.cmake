# plumb_embed_shaders(TARGET SOURCE KERNELS... [INCLUDES FOLDERS...] [DEPENDS FILES...]): each kernel (*.k,
# the language of kernels/portable) as SPIR-V for each storage type, which SOURCE of TARGET includes as
# shader_table.inc. Where there is no glslangValidator SOURCE is compiled without.
function(plumb_embed_shaders target source)
  cmake_parse_arguments(PARSE_ARGV 2 with "" "" "KERNELS;INCLUDES;DEPENDS")
  if(NOT PLUMB_GLSLANG)
    return()
  endif()
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/shaders")
  set(includes ${with_INCLUDES})
  list(TRANSFORM includes PREPEND "-I")
  set(arrays "")
  set(rows "")
  set(modules)
  foreach(kernel IN LISTS with_KERNELS)
    cmake_path(GET kernel STEM name)
    set(number 0)
    foreach(storage f32 bf16 f16)
      set(module "${folder}/${name}_${storage}.inc")
      file(CONFIGURE OUTPUT "${folder}/${name}_${storage}.comp" CONTENT
"#version 460
#extension GL_GOOGLE_include_directive : require
#define PLUMB_GLSL
#define STORAGE ${number}
#include \"${name}.k\"
")
      add_custom_command(OUTPUT "${module}"
        COMMAND "${PLUMB_GLSLANG}" --quiet -V --target-env vulkan1.2 ${includes} -x -o "${module}"
          "${folder}/${name}_${storage}.comp"
        DEPENDS "${kernel}" "${folder}/${name}_${storage}.comp" ${with_DEPENDS}
        COMMENT "SPIR-V of ${name} (${storage})" VERBATIM)
      list(APPEND modules "${module}")
      string(APPEND arrays "constexpr uint32_t k_${name}_${storage}[] = {\n#include <${name}_${storage}.inc>\n};\n")
      string(APPEND rows "    {\"${name}\", portable::Storage::${storage}, k_${name}_${storage}},\n")
      math(EXPR number "${number} + 1")
    endforeach()
  endforeach()
  file(CONFIGURE OUTPUT "${folder}/shader_table.inc" CONTENT "${arrays}constexpr ShaderRow kShaders[] = {\n${rows}};\n")
  # A target of its own: several targets may compile SOURCE, the modules are made once.
  add_custom_target(${target}_shaders DEPENDS ${modules})
  add_dependencies(${target} ${target}_shaders)
  set_source_files_properties("${source}" TARGET_DIRECTORY ${target} PROPERTIES
    INCLUDE_DIRECTORIES "${folder}" COMPILE_DEFINITIONS PLUMB_SHADERS OBJECT_DEPENDS "${modules}"
    SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
