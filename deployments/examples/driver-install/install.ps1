# Installs the driver that the environment variables describe, and restarts the node if it must. It runs
# again after a restart. It ends with an error, which the kubelet shows, rather than try twice.
$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'

function Get-Driver {
    Get-CimInstance -ClassName Win32_PnPSignedDriver |
        Where-Object { $_.DeviceClass -in 'DISPLAY', 'COMPUTEACCELERATOR' -and $_.DriverProviderName -ne 'Microsoft' }
}

Get-Driver | ForEach-Object { Write-Host "Found: $($_.DeviceName), driver $($_.DriverVersion)" }
if (@(Get-Driver).DriverVersion -notcontains $env:DRIVER_VERSION) {
    $work = "$env:ProgramData\driver-install\$env:DRIVER_VERSION"
    if (Test-Path -Path $work) {
        throw "Driver $env:DRIVER_VERSION was installed before, but no GPU uses it. See C:\Windows\INF\setupapi.dev.log, then remove $work."
    }
    $files = $env:DRIVER_SOURCE
    if ($env:DRIVER_SOURCE -like 'https://*') {
        $archive = Join-Path $env:TEMP 'driver-install.zip'
        Invoke-WebRequest -UseBasicParsing -Uri $env:DRIVER_SOURCE -OutFile $archive
        $hash = (Get-FileHash -Path $archive -Algorithm SHA256).Hash
        if ($hash -ne $env:DRIVER_SHA256) {
            throw "The SHA-256 checksum of $env:DRIVER_SOURCE is $hash, want $env:DRIVER_SHA256."
        }
        $files = Join-Path $env:TEMP 'driver-install'
        Expand-Archive -Path $archive -DestinationPath $files -Force
    }
    if (-not (Get-ChildItem -Path $files -Filter '*.inf' -Recurse)) {
        throw "There is no .inf file in $files."
    }
    New-Item -Path $work -ItemType Directory | Out-Null
    Write-Host "Installing driver $env:DRIVER_VERSION from $env:DRIVER_SOURCE"
    & pnputil.exe '/add-driver' "$files\*.inf" '/subdirs' '/install'
    # https://learn.microsoft.com/windows-hardware/drivers/devtest/pnputil-return-values
    switch ($LASTEXITCODE) {
        0 { }
        3010 {
            Write-Host 'Restarting the node'
            Restart-Computer -Force
            Start-Sleep -Seconds 600
        }
        default { throw "pnputil failed with exit code $LASTEXITCODE." }
    }
    if (@(Get-Driver).DriverVersion -notcontains $env:DRIVER_VERSION) {
        throw "No GPU uses driver $env:DRIVER_VERSION after its installation."
    }
}
Write-Host "Done: driver $env:DRIVER_VERSION is in use. Remove the node's label driver-install, and uncordon it."
while ($true) { Start-Sleep -Seconds 3600 }
