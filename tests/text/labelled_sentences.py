"""Sentences written for this test in the styles of ICU, outpatient and research reports, with labels set by hand.

One case a line: text | labels. `+` positive, `-` negative, `?` uncertain; an observation that is not named is not
mentioned. EC Enlarged Cardiomediastinum, CM Cardiomegaly, OP Lung Opacity, LE Lung Lesion, ED Edema, CO Consolidation,
PN Pneumonia, AT Atelectasis, PX Pneumothorax, EF Pleural Effusion, PO Pleural Other, FX Fracture, SD Support Devices,
NF No Finding.
"""

from __future__ import annotations

CODES = {
    "EC": "Enlarged Cardiomediastinum",
    "CM": "Cardiomegaly",
    "OP": "Lung Opacity",
    "LE": "Lung Lesion",
    "ED": "Edema",
    "CO": "Consolidation",
    "PN": "Pneumonia",
    "AT": "Atelectasis",
    "PX": "Pneumothorax",
    "EF": "Pleural Effusion",
    "PO": "Pleural Other",
    "FX": "Fracture",
    "SD": "Support Devices",
    "NF": "No Finding",
}
STATES = {"+": "positive", "-": "negative", "?": "uncertain"}

_CASES = """
# --- Cardiomegaly
Moderate cardiomegaly is again seen. | CM+
The heart is mildly enlarged. | CM+
Heart size is enlarged but stable. | CM+
Stable enlargement of the cardiac silhouette. | CM+
The cardiac silhouette remains markedly enlarged. | CM+
Heart size top normal. | CM- NF+
Heart size is at the upper limits of normal. | CM- NF+
The heart is not enlarged. | CM- NF+
No cardiomegaly. | CM- NF+
Heart size normal. | CM- NF+
Cardiac size is within normal limits. | CM- NF+
Normal heart size. | CM- NF+
The heart size is borderline. | CM?
Borderline cardiomegaly. | CM?
Heart size is stable. | CM?
Unchanged cardiac silhouette. | CM?
The cardiac silhouette is difficult to assess given the large effusion. | CM? EF+
Possible mild cardiomegaly. | CM?
Cardiac silhouette is larger than on the prior study. | CM+
There has been no significant change in cardiomegaly. | CM+
Heart size cannot be assessed. | CM?
The heart may be slightly enlarged. | CM?
Lung bases are clear behind the heart. | NF+
Cardiomegaly has resolved. | CM- NF+
Mildly enlarged heart with tortuous aorta. | CM+
# --- Enlarged Cardiomediastinum
The mediastinum is widened. | EC+
Widened mediastinum, which may be projectional. | EC+
There is prominence of the superior mediastinum. | EC+
Cardiomediastinal silhouette is enlarged. | EC+
Mediastinal widening is concerning in the setting of trauma. | EC+
The cardiomediastinal silhouette is within normal limits. | EC- NF+
Mediastinal and hilar contours are unremarkable. | EC- NF+
The cardiac and mediastinal contours are normal. | EC- NF+
No mediastinal widening. | EC- NF+
The mediastinum is not widened. | EC- NF+
Cardiomediastinal contours are stable. | EC?
Possible widening of the superior mediastinum. | EC?
Heart and mediastinum within normal limits. | CM- EC- NF+
Heart size and mediastinal contours are normal. | CM- EC- NF+
The mediastinum may be slightly widened. | EC?
The cardiac, mediastinal and hilar contours appear stable. | EC?
The cardiomediastinal silhouette is obscured by the right effusion. | EC? EF+
# --- Lung Opacity
Patchy opacity in the right lower lobe. | OP+
Hazy bibasilar opacities are unchanged. | OP+
Increased interstitial markings bilaterally. | OP+
Interstitial markings are normal. | OP- NF+
Linear scarring at the left base. | OP+
No focal airspace opacity. | OP- NF+
No infiltrate. | OP- NF+
There is no new focal opacity. | OP?
Lungs are clear without focal opacity. | OP- NF+
Lungs are clear. | NF+
Possible faint opacity in the lingula. | OP?
Questionable retrocardiac density. | OP?
Ground glass opacities throughout both lungs. | OP+
Peribronchial thickening without focal infiltrate. | OP+
The previously noted right basilar opacity has resolved. | OP- NF+
Opacification of the left hemithorax. | OP+
No acute infiltrates, effusions or pneumothorax. | OP- EF- PX- NF+
Airspace disease in the right middle lobe. | OP+
Interval clearing of the left basilar infiltrate. | OP- NF+
Right upper lobe opacity is no longer seen. | OP- NF+
Improved bibasilar opacities. | OP+
An infiltrate cannot be excluded at the left base. | OP?
Diffuse reticulonodular opacities. | OP+
# --- Lung Lesion
A 6 mm nodule is seen in the right upper lobe. | LE+
There is a spiculated mass in the left upper lobe. | LE+
Multiple pulmonary nodules consistent with metastases. | LE+
No pulmonary nodule or mass. | LE- NF+
No suspicious nodules are identified. | LE- NF+
Possible nodule projecting over the left fifth rib. | LE?
Calcified granuloma in the left lung. |
Calcified nodule in the right upper lobe. |
Nodular opacity at the right apex. | LE+ OP+
Right hilar mass suspicious for malignancy. | LE+
Cavitary lesion in the right upper lobe. | LE+
Nodule versus nipple shadow at the left base. | LE?
Underlying mass cannot be excluded. | LE?
No mass effect. | NF+
Known lung carcinoma is again demonstrated. | LE+
Recommend CT to exclude an underlying mass. | LE?
# --- Edema
Mild interstitial pulmonary edema. | ED+
Moderate pulmonary oedema, worse than before. | ED+
No pulmonary edema. | ED- NF+
No evidence of CHF. | ED- NF+
Findings consistent with congestive heart failure. | ED+ CM?
Pulmonary vascular congestion. | ED?
Mild vascular congestion without overt edema. | ED?
No pulmonary vascular congestion. | ED- NF+
Possible mild edema. | ED?
Interval resolution of pulmonary edema. | ED- NF+
Edema has improved. | ED+
Pulmonary edema has nearly resolved. | ED+
Pulmonary edema has completely resolved. | ED- NF+
Findings may represent mild edema. | ED?
Cardiomegaly and CHF. | CM+ ED+
Without overt failure, there is mild cardiomegaly. | CM+ ED-
Asymmetric edema is suspected. | ED?
Indistinctness of the pulmonary vasculature. | ED?
There is no evidence of fluid overload. | ED- NF+
Lungs are clear, without edema. | ED- NF+
Edema is less likely. | ED?
# --- Consolidation
Dense consolidation in the left lower lobe. | CO+
No focal consolidation. | CO- NF+
No consolidation is identified. | CO- NF+
Left lower lobe consolidation has cleared. | CO- NF+
Retrocardiac consolidation cannot be excluded. | CO?
Possible right basilar consolidation. | CO?
The lungs are free of consolidation. | CO- NF+
Consolidation or collapse of the left lower lobe. | CO? AT?
No new consolidation. | CO?
Persistent consolidative opacity in the right upper lobe. | CO+
Negative for focal consolidation. | CO- NF+
Lungs: No consolidation. Pleura: No effusion. | CO- EF- NF+
Early consolidation is not excluded. | CO?
# --- Pneumonia
Right lower lobe pneumonia. | PN+
Findings compatible with multifocal pneumonia. | PN+
Opacity likely representing pneumonia. | OP+ PN+
Opacity suspicious for pneumonia. | OP+ PN?
Opacity concerning for infection. | OP+ PN?
Opacity could represent pneumonia in the appropriate clinical setting. | OP+ PN?
No evidence of pneumonia. | PN- NF+
No radiographic evidence of acute pneumonia. | PN- NF+
Pneumonia cannot be excluded. | PN?
Cannot rule out early pneumonia. | PN?
Superimposed infection is difficult to exclude. | PN?
No findings to suggest pneumonia. | PN- NF+
Pneumonia has resolved. | PN- NF+
Atelectasis versus pneumonia at the left base. | AT? PN?
Evaluate for pneumonia. | NF+
Indication: rule out pneumonia. Findings: lungs are clear. | NF+
Clear lungs without superimposed infection. | PN- NF+
Infectious process is possible. | PN?
Aspiration pneumonia is suspected in the right lower lobe. | PN?
History of pneumonia. | NF+
Resolving left lower lobe pneumonia. | PN+
Given the clinical history, this is worrisome for pneumonia. | PN?
There is question of a left basilar pneumonia. | PN?
Residuals of prior granulomatous infection. |
# --- Atelectasis
Bibasilar atelectasis. | AT+
Subsegmental atelectasis at the left base is unchanged. | AT+
Left lower lobe collapse. | AT+
No atelectasis. | AT- NF+
Opacities may reflect atelectasis. | OP+ AT?
Basilar opacities, likely atelectasis. | OP+ AT+
Probable bibasilar atelectasis. | AT?
Atelectasis or scarring at the right base. | AT? OP?
Compressive atelectasis adjacent to the effusion. | AT+ EF+
Atelectatic changes are seen in the lung bases. | AT+
Lower lung atelectasis and/or consolidation. | AT? CO?
Opacity most likely due to atelectasis. | OP+ AT+
There is some volume loss with collapse of the right upper lobe. | AT+
Vertebral body collapse at T8. |
Minimal discoid atelectasis, otherwise clear lungs. | AT+
Improved aeration with decreased atelectasis. | AT+
# --- Pneumothorax
Small right apical pneumothorax. | PX+
No pneumothorax. | PX- NF+
There is no evidence of pneumothorax. | PX- NF+
No PTX. | PX- NF+
No pneumothorax is seen. | PX- NF+
Pneumothorax is not seen. | PX- NF+
Interval resolution of the left pneumothorax. | PX- NF+
Previously seen pneumothorax is no longer visualized. | PX- NF+
Possible tiny left apical pneumothorax. | PX?
A small pneumothorax cannot be excluded. | PX?
Tiny residual PTX after chest tube removal. | PX+ SD-
Stable left hydropneumothorax. | PX+ EF+
No visible pneumothorax on this supine film. | PX- NF+
No definite pneumothorax. | PX- NF+
The right pneumothorax is unchanged. | PX+
Without evidence of pneumothorax. | PX- NF+
Pneumothorax: None. | PX- NF+
No large pneumothorax. | PX- NF+
Bilateral pneumothoraces are smaller. | PX+
Lucency at the apex may represent a pneumothorax. | PX?
# --- Pleural Effusion
Small bilateral pleural effusions. | EF+
Large left effusion with complete whiteout. | EF+ OP+
No pleural effusion. | EF- NF+
No effusions. | EF- NF+
No large pleural effusion. | EF- NF+
Trace pleural fluid. | EF+
Fluid in the minor fissure. | EF+
Possible small left effusion. | EF?
Small effusion cannot be excluded. | EF?
Blunting of the costophrenic angle may represent a small effusion. | EF?
Blunting of the left costophrenic angle. |
The effusion has resolved. | EF- NF+
Pericardial effusion. |
Right effusion has decreased in size. | EF+
No change in the right effusion. | EF+
There is no significant interval change in the moderate left effusion. | EF+
Effusions are not excluded. | EF?
Pleural effusions are absent. | EF- NF+
Free of pleural effusion. | EF- NF+
Loculated right pleural effusion. | EF+
Probable trace effusions bilaterally. | EF?
Small bilateral pleural effusions suspected. | EF?
No longer any pleural effusion. | EF- NF+
The pleural effusion appears larger. | EF+
Hemothorax on the left. | EF+
# --- Pleural Other
Biapical pleural thickening. | PO+
No pleural thickening. | PO- NF+
Possible pleural thickening along the right chest wall. | PO?
Calcified pleural plaques consistent with asbestos exposure. | PO+
Pleural thickening versus small effusion. | PO? EF?
Right fibrothorax. | PO+
Stable pleural scarring at the right base. | PO+
Effusion or pleural thickening on the left. | EF? PO?
Left apical cap. | PO+
No pleural plaques are seen. | PO- NF+
# --- Fracture
Acute left seventh rib fracture. | FX+
Old healed right rib fractures. | FX+
No acute fracture. | FX- NF+
No displaced rib fracture. | FX- NF+
Possible nondisplaced fracture of the left sixth rib. | FX?
Rib fracture cannot be excluded. | FX?
Osseous structures are intact. | NF+
Multiple old rib fractures are unchanged. | FX+
If there is concern for rib fracture, dedicated rib films are recommended. | NF+
T12 compression fracture of uncertain age. | FX+
No fractures or dislocations. | FX- NF+
Please note that fractures may not be visible on this study. | NF+
Suspected clavicle fracture. | FX?
# --- Support Devices
Endotracheal tube terminates 4.5 cm above the carina. | SD+ NF+
Right PICC tip in the mid SVC. | SD+ NF+
Left pectoral pacemaker with leads in the right atrium and right ventricle. | SD+ NF+
ETT and NGT in standard position. | SD+ NF+
The Swan-Ganz catheter has been removed. | SD- NF+
No support devices. | SD- NF+
Interval removal of the endotracheal tube. | SD- NF+
Median sternotomy wires are intact. | SD+ NF+
Right IJ line in place without pneumothorax. | SD+ PX- NF+
Tip of the central line projects over the cavoatrial junction. | SD+ NF+
Dual-lead ICD is unchanged. | SD+ NF+
Nasogastric tube courses below the diaphragm, tip not included. | SD+ NF+
Left chest tube remains in place with no residual pneumothorax. | SD+ PX- NF+
Spinal fusion hardware is noted. | SD+ NF+
Aortic valve prosthesis. | SD+ NF+
Monitoring leads overlie the chest. | SD+ NF+
Port-A-Cath tip in the lower SVC. | SD+ NF+
No pneumothorax following line placement. | PX- SD+ NF+
Tracheostomy tube in satisfactory position. | SD+ NF+
The pleural line is visible at the apex. | NF+
Endplate irregularity is noted. | NF+
# --- No Finding and other abnormalities
No acute cardiopulmonary process. | NF+
Normal chest radiograph. | NF+
No acute cardiopulmonary abnormality. | NF+
Hyperinflated lungs consistent with COPD. |
Degenerative changes of the thoracic spine. |
No acute osseous abnormality. | NF+
Hiatal hernia. |
Tortuous aorta. |
Emphysema without focal consolidation. | CO-
Unremarkable examination. | NF+
# --- lists, conjunctions, scope
No pleural effusion, pneumothorax or focal consolidation. | EF- PX- CO- NF+
No focal consolidation, pleural effusion, or pneumothorax is seen. | CO- EF- PX- NF+
No consolidation, effusion, pneumothorax. | CO- EF- PX- NF+
Without effusion or pneumothorax. | EF- PX- NF+
No edema but small effusion. | ED- EF+
No pneumothorax, although a small effusion persists. | PX- EF+
Small effusion without pneumothorax. | EF+ PX-
No pneumothorax. Small left pleural effusion. | PX- EF+
No pneumothorax, small left pleural effusion. | PX- EF+
No pneumothorax; moderate right effusion. | PX- EF+
There is no pneumothorax and the heart is enlarged. | PX- CM+
No change in bibasilar atelectasis or small effusions. | AT+ EF+
Neither pneumothorax nor effusion is seen. | PX- EF- NF+
Lungs clear except for left basilar atelectasis. | AT+
There is no pneumothorax, and there is a small left effusion. | PX- EF+
Opacities that may represent edema or infection. | OP+ ED? PN?
Cardiomegaly without edema, effusion or consolidation. | CM+ ED- EF- CO-
No effusion, edema, or pneumothorax; mild cardiomegaly. | EF- ED- PX- CM+
No evidence of pneumonia, heart failure, or effusion. | PN- ED- EF- NF+
No pneumothorax or pleural effusion, with stable cardiomegaly. | PX- EF- CM+
The effusion and atelectasis have resolved. | EF- AT- NF+
There is mild edema and the effusion has resolved. | ED+ EF-
No focal consolidation, but mild vascular congestion is noted. | CO- ED?
1. No pneumothorax. 2. Small effusion. | PX- EF+
1. Left pleural effusion with adjacent atelectasis. 2. Cardiomegaly without overt edema. | EF+ AT+ CM+ ED-
The lungs show no consolidation and the heart size is normal. | CO- CM- NF+
Heart size normal and lungs are clear. No edema or pneumonia. No effusion | CM- ED- PN- EF- NF+
Heart size is normal with no pleural effusion or pneumothorax. | CM- EF- PX- NF+
Low lung volumes with bibasilar atelectasis, no focal consolidation. | AT+ CO-
lungs are clear . no pleural effusion or pneumothorax . heart size is normal . | EF- PX- CM- NF+
No evidence for CHF, pneumonia, or pleural effusion. | ED- PN- EF- NF+
Moderate effusion, unchanged, no pneumothorax. | EF+ PX-
Pneumothorax and effusion are not identified. | PX- EF- NF+
Differential diagnosis includes edema, infection, aspiration. | ED? PN?
Retrocardiac opacity which could be atelectasis, but pneumonia cannot be excluded. | OP+ AT? PN?
Unchanged small right pneumothorax without tension. | PX+
Decreased left effusion, no new consolidation. | EF+ CO?
No interval development of pneumothorax. | PX- NF+
No findings suspicious for pneumonia. | PN- NF+
Bibasilar opacities, left greater than right, likely a combination of atelectasis and effusion. | OP+ AT+ EF+
There is no radiographic evidence for acute or active infiltrate, edema, pneumothorax, or effusion. | OP- ED- PX- EF- NF+
Mild cardiomegaly, no edema. | CM+ ED-
No cardiomegaly or edema. | CM- ED- NF+
Right basilar consolidation persists; the effusion is gone. | CO+ EF-
Pulmonary edema, pneumonia, or hemorrhage could have this appearance. | ED? PN?
The NG tube has been removed and the lungs are clear. | SD- NF+
Interval intubation with ETT tip 3 cm above the carina, no pneumothorax. | SD+ PX-  NF+
XXXX lungs are clear. Heart and mediastinum are normal. | CM- EC- NF+
___ effusion ___ no pneumothorax. | EF+ PX-
# --- ICU, follow-up and dictation styles
As compared to the previous radiograph, there is no relevant change. | NF+
In comparison with the study of ___, there is little overall change. | NF+
The monitoring and support devices remain in place. | SD+ NF+
Monitoring and support devices are unchanged. | SD+ NF+
Continued enlargement of the cardiac silhouette with pulmonary vascular congestion and bilateral pleural effusions with compressive basilar atelectasis. | CM+ ED? EF+ AT+
Cardiomegaly is accompanied by mild interstitial edema and small pleural effusions, right greater than left. | CM+ ED+ EF+
Low lung volumes accentuate the cardiac silhouette and bronchovascular structures. | NF+
There are no new focal consolidations. | CO?
There is no focal consolidation, pleural effusion or pneumothorax. | CO- EF- PX- NF+
The cardiomediastinal and hilar contours are within normal limits. | EC- NF+
The patient is status post median sternotomy and CABG with intact sternal wires. | SD+ NF+
Retrocardiac opacity is likely due to atelectasis, however infection cannot be excluded in the appropriate clinical setting. | OP+ AT+ PN?
Bibasilar opacities, which could be due to atelectasis, aspiration, or pneumonia. | OP+ AT? PN?
Opacification at the left base is consistent with volume loss in the left lower lobe and pleural effusion. | OP+ EF+
The right-sided PICC line terminates in the mid SVC without evidence of pneumothorax. | SD+ PX- NF+
Interval placement of a left-sided chest tube with near complete resolution of the left pneumothorax. | SD+ PX+
There has been interval extubation. | NF+
The endotracheal tube has been withdrawn and now terminates 5 cm above the carina. | SD+ NF+
Swan-Ganz catheter has been removed, otherwise support devices are in standard position. | SD+ NF+
Compared with yesterday, the moderate right pleural effusion has slightly increased, and there is no pneumothorax. | EF+ PX-
Lungs are fully expanded and clear. No pleural abnormalities. Heart size is normal. Cardiomediastinal and hilar silhouettes are normal. | EC- CM- NF+
Mild to moderate pulmonary edema is unchanged. | ED+
Mild pulmonary edema has worsened since the prior study. | ED+
No acute intrathoracic process. | NF+
There is persistent blunting of the left costophrenic angle, which may be due to a small pleural effusion or pleural thickening. | EF? PO?
The lung volumes are low, with crowding of bronchovascular structures, without overt pulmonary edema. | ED- NF+
Subtle opacity at the right lung base may represent early pneumonia versus atelectasis. | OP+ PN? AT?
There is a right apical pneumothorax measuring 2.3 cm. | PX+
The known right apical pneumothorax has decreased in size. | PX+
No evidence of larger pleural effusions. | EF- NF+
Moderate cardiomegaly with tortuous aorta but no overt pulmonary edema. | CM+ ED-
The heart size is mildly enlarged, as before. The aorta is calcified. | CM+
Heart remains normal in size. | CM- NF+
Unchanged moderate cardiomegaly, unchanged alignment of the sternal wires. | CM+ SD+
No displaced rib fractures are identified; however, if there is persistent clinical concern, dedicated rib series may be performed. | FX- NF+
Compression deformity of a mid thoracic vertebral body is unchanged. |
There is no free air below the right hemidiaphragm. | NF+
Multiple healed left rib fractures are again seen. | FX+
Left lower lobe consolidation compatible with pneumonia. | CO+ PN+
Findings are consistent with multifocal pneumonia, although asymmetric edema could have a similar appearance. | PN+ ED?
These findings may represent pulmonary edema, although superimposed infection cannot be excluded. | ED? PN?
Hyperinflated lungs with flattened diaphragms suggesting COPD. No focal consolidation. | CO-
Dense calcified granuloma in the left upper lobe is unchanged. |
A 9-mm nodular opacity in the left mid lung is new since the prior study. | OP+ LE+
Multiple bilateral pulmonary nodules, compatible with known metastatic disease. | LE+
Right perihilar mass with postobstructive atelectasis. | LE+ AT+
No concerning pulmonary nodule is identified. | LE- NF+
Pacemaker leads are unchanged in position, terminating in the right atrium and ventricle. | SD+ NF+
Left-sided AICD device is noted with leads in stable positions. | SD+ NF+
An enteric tube is seen coursing below the diaphragm, out of the field of view. | SD+ NF+
Interval removal of the right internal jugular central line. | SD- NF+
All lines and tubes have been removed. | SD- NF+
Postsurgical changes in the left hemithorax with pleural thickening and small loculated effusion. | PO+ EF+
Increased opacification of the right hemithorax, likely reflecting a combination of effusion and collapse. | OP+ EF+ AT+
Prominent interstitial markings may reflect mild pulmonary edema or chronic interstitial lung disease. | OP+ ED?
There is mild pulmonary vascular engorgement without frank edema. | ED?
Pulmonary vasculature is normal. | NF+
Pulmonary vascularity is not engorged. | NF+
No vascular congestion, pleural effusion, or pneumothorax. | ED- EF- PX- NF+
Worsening bilateral airspace opacities, differential includes ARDS, pneumonia, and hemorrhage. | OP+ PN?
Decreased right pleural effusion following thoracentesis, no pneumothorax. | EF+ PX-
Status post thoracentesis with near-complete evacuation of the right effusion and no evidence of pneumothorax. | EF+ PX-
Small residual pneumothorax at the right apex status post chest tube removal. | PX+ SD-
The previously seen left retrocardiac opacity has cleared. | OP- NF+
There has been interval improvement in the right lower lobe pneumonia. | PN+
Resolution of previously noted pulmonary edema. | ED- NF+
Mild cardiomegaly and mild pulmonary vascular congestion, no focal consolidation. | CM+ ED? CO-
No large effusion is seen, though trace effusions would be difficult to exclude. | EF?
A trace left pleural effusion is difficult to exclude. | EF?
Small left pleural effusion is likely. | EF+
There are probable small bilateral effusions. | EF?
Possible trace left pleural effusion, but no pneumothorax. | EF? PX-
Patchy right basilar opacity, question aspiration or pneumonia. | OP+ PN?
Question right lower lobe infiltrate. | OP?
?Left lower lobe pneumonia. | PN?
Opacity in the right middle lobe, pneumonia vs atelectasis. | OP+ PN? AT?
Left basilar atelectasis/consolidation. | AT? CO?
Bibasilar atelectasis and/or scarring. | AT? OP?
Focal opacity in the lingula, which likely reflects atelectasis rather than pneumonia. | OP+ AT+ PN-
Basal opacities favor atelectasis over infection. | OP+ AT? PN?
Pneumonia is considered less likely. | PN?
No convincing evidence of pneumonia or edema. | PN- ED- NF+
No definite focal consolidation or effusion. | CO- EF- NF+
No obvious pneumothorax. | PX- NF+
Without definite evidence of focal consolidation. | CO- NF+
Lungs are clear of focal consolidation, pleural effusion or pneumothorax. | CO- EF- PX- NF+
The lungs are clear bilaterally with no focal consolidation, effusion, edema, or pneumothorax. | CO- EF- ED- PX- NF+
Clear lungs. No effusions. Normal heart. | EF- CM- NF+
The cardiac silhouette is top-normal in size. | CM- NF+
The cardiac silhouette is mildly prominent. | CM+
The heart is at the upper limits of normal in size to mildly enlarged. | CM?
Heart and mediastinal contours are within normal limits. | CM- EC- NF+
Mediastinal silhouette is within normal limits; heart size is enlarged. | EC- CM+
Stable cardiomediastinal silhouette with mild cardiomegaly. | EC? CM+
The mediastinal contour is widened, unchanged. | EC+
Superior mediastinal widening is likely due to vascular ectasia. | EC+
Right paratracheal opacity may represent vascular structures. | OP+
Bony structures are unremarkable. | NF+
No evidence of acute fracture or dislocation. | FX- NF+
Fracture of the distal right clavicle. | FX+
Old left-sided rib deformities. |
Right shoulder arthroplasty. | SD+ NF+
Nasogastric tube tip is in the stomach; the side port is below the gastroesophageal junction. | SD+ NF+
Tip of the ET tube is 3.2 cm from the carina; right IJ catheter tip at the cavoatrial junction; no pneumothorax. | SD+ PX- NF+
No pneumothorax or other complication after pacemaker placement. | PX- SD+ NF+
There is no pneumothorax, pleural effusion, pulmonary edema, or focal airspace consolidation. | PX- EF- ED- CO- NF+
No pleural effusion. Pneumothorax is not present. | EF- PX- NF+
Patient is rotated, which limits evaluation. Within this limitation no acute process. | NF+
Increased retrocardiac density. | OP+
Left lower lobe opacification with air bronchograms. | OP+
Bilateral hazy opacities, right more than left, slightly improved since yesterday. | OP+
Mild bibasilar subsegmental atelectasis is present, but there is no consolidation or effusion. | AT+ CO- EF-
No evidence of active tuberculosis. | NF+
Biapical scarring, right greater than left. | OP+
Chronic interstitial changes compatible with fibrosis. | OP+ PO+
Elevation of the right hemidiaphragm with right basilar atelectasis. | AT+
The left hemidiaphragm is obscured, compatible with atelectasis and effusion. | AT+ EF+
Consolidation in the right lower lobe with associated parapneumonic effusion. | CO+ EF+
Large left tension pneumothorax with mediastinal shift to the right. | PX+
Known small left pneumothorax is not well seen on today's study. | PX?
No right pneumothorax. Trace left pneumothorax. | PX+
1. Low lung volumes. 2. No focal consolidation. 3. Stable left PICC. | CO- SD+ NF+
IMPRESSION: 1. NO EVIDENCE OF PNEUMOTHORAX. 2. STABLE BIBASILAR ATELECTASIS. | PX- AT+
1.  INTERVAL PLACEMENT OF RIGHT IJ CENTRAL VENOUS CATHETER, WITH TIP IN SVC. NO PNEUMOTHORAX. | SD+ PX- NF+
2.  PERSISTENT LEFT RETROCARDIAC OPACITY, WHICH MAY REPRESENT ATELECTASIS OR CONSOLIDATION. | OP+ AT? CO?
3.  STABLE PULMONARY EDEMA AND BILATERAL PLEURAL EFFUSIONS. | ED+ EF+
STABLE CARDIOMEGALY. NO EVIDENCE OF CONGESTIVE HEART FAILURE. | CM+ ED-
"""


def cases() -> list[tuple[str, dict[str, str]]]:
    """(text, observation name to state) of every case."""
    rows = []
    for line in _CASES.strip().splitlines():
        if line.startswith("#"):
            continue
        text, _, labels = line.rpartition("|")
        rows.append((text.strip(), {CODES[item[:2]]: STATES[item[2]] for item in labels.split()}))
    return rows
