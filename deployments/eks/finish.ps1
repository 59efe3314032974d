# Checks the driver after the restart, and prepares the instance for the AMI.
$ErrorActionPreference = 'Stop'
$model = & nvidia-smi.exe '--query-gpu=driver_model.current' '--format=csv,noheader'
if ($LASTEXITCODE -ne 0 -or $model -ne 'WDDM') {
    throw "The GPU's driver model is '$model', want WDDM, which containers can use."
}

# Packer stays connected, but nodes start without the service that listens for it.
Set-Service -Name WinRM -StartupType Disabled

# Without sysprep, instances do not run their user data, and so do not join the cluster.
$launch = "$env:ProgramFiles\Amazon\EC2Launch\EC2Launch.exe"
& $launch reset --block
& $launch sysprep --shutdown --block
