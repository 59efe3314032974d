# Installs the driver that the environment variables describe, and restarts the node if it must. It runs
# again after a restart. It ends with an error, which the kubelet shows, rather than try twice.
$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'

function Get-Driver {
    Get-CimInstance -ClassName Win32_PnPSignedDriver |
        Where-Object { $_.DeviceClass -in 'DISPLAY', 'COMPUTEACCELERATOR' -and $_.DriverProviderName -ne 'Microsoft' }
}

# New-PrivateDirectory creates a directory with its access control list, so from the beginning nobody but SYSTEM and
# Administrators can read it or put files into it. Windows PowerShell has this method, PowerShell 7 has not.
function New-PrivateDirectory([string] $Path) {
    $access = [System.Security.AccessControl.DirectorySecurity]::new()
    $access.SetSecurityDescriptorSddlForm('D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)')
    [System.IO.Directory]::CreateDirectory($Path, $access) | Out-Null
}

Get-Driver | ForEach-Object { Write-Host "Found: $($_.DeviceName), driver $($_.DriverVersion)" }
if (@(Get-Driver).DriverVersion -notcontains $env:DRIVER_VERSION) {
    # Only administrators can create a directory in Windows, but everybody can in ProgramData.
    $base = Join-Path -Path $env:SystemRoot -ChildPath 'driver-install'
    $done = Join-Path -Path $base -ChildPath $env:DRIVER_VERSION
    if (Test-Path -Path $done) {
        throw "Driver $env:DRIVER_VERSION was installed before, but no GPU uses it. See C:\Windows\INF\setupapi.dev.log, then remove $done."
    }
    Remove-Item -Path (Join-Path -Path $base -ChildPath 'work-*') -Recurse -Force -ErrorAction SilentlyContinue # of a pod that was killed
    $work = Join-Path -Path $base -ChildPath "work-$([guid]::NewGuid())"
    New-PrivateDirectory -Path $work
    try {
        $files = $env:DRIVER_SOURCE
        if ($env:DRIVER_SOURCE -like 'https://*') {
            $archive = Join-Path -Path $work -ChildPath 'driver.zip'
            Invoke-WebRequest -UseBasicParsing -Uri $env:DRIVER_SOURCE -OutFile $archive
            $hash = (Get-FileHash -Path $archive -Algorithm SHA256).Hash
            if ($hash -ne $env:DRIVER_SHA256) {
                throw "The SHA-256 checksum of $env:DRIVER_SOURCE is $hash, want $env:DRIVER_SHA256."
            }
            $files = Join-Path -Path $work -ChildPath 'driver'
            Expand-Archive -Path $archive -DestinationPath $files
        }
        if (-not (Get-ChildItem -Path $files -Filter '*.inf' -Recurse)) {
            throw "There is no .inf file in $files."
        }
        New-Item -Path $done -ItemType Directory | Out-Null
        Write-Host "Installing driver $env:DRIVER_VERSION from $env:DRIVER_SOURCE"
        & pnputil.exe '/add-driver' "$files\*.inf" '/subdirs' '/install'
        $status = $LASTEXITCODE
    } finally {
        Remove-Item -Path $work -Recurse -Force -ErrorAction Continue # The node may restart below.
    }
    # https://learn.microsoft.com/windows-hardware/drivers/devtest/pnputil-return-values
    switch ($status) {
        0 { }
        3010 {
            Write-Host 'Restarting the node'
            Restart-Computer -Force
            Start-Sleep -Seconds 600
        }
        default { throw "pnputil failed with exit code $status." }
    }
    if (@(Get-Driver).DriverVersion -notcontains $env:DRIVER_VERSION) {
        throw "No GPU uses driver $env:DRIVER_VERSION after its installation."
    }
}
Write-Host "Done: driver $env:DRIVER_VERSION is in use. Remove the node's label driver-install, and uncordon it."
while ($true) { Start-Sleep -Seconds 3600 }
