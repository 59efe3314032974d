@echo off
rem Reports which interfaces of a GPU work in a container. Each has a program of its own, because a
rem driver's DLL may end the process.
cd /d "%~dp0"
call :try "Direct3D 12" adapters.exe d3d12
call :try "Vulkan" vulkan.exe
call :try "OpenCL" opencl.exe pi
call :try "CUDA" cuda.exe pi
call :try "video encoders" encoders.exe
exit /b 0

:try
echo --- %~1
%2 %3
if %errorlevel% == 0 (echo === %~1: yes) else (echo === %~1: no, status %errorlevel%)
exit /b 0
